//===- MegatronTest.cpp - Megatron's pattern follows from the rules -------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Counts of collectives in the sharded IR, as the general pass leaves it, of
// GPT-2 and of GPT-2 with all of its names changed.
//
//===----------------------------------------------------------------------===//
#include "Support.h"

#include <cctype>
#include <functional>
#include <sstream>

using namespace cleave;
using namespace cleave::e2e;

namespace {

//===----------------------------------------------------------------------===//
// Collectives in text
//===----------------------------------------------------------------------===//

struct Collective {
  std::string op;        ///< "all_reduce"
  std::string reduction; ///< "sum", "max" or empty
  std::string axes;      ///< "tp"
  std::string phase = "forward";
  std::string types; ///< ": <operand> -> <result>"
  bool inLayer = false;

  friend bool operator==(const Collective &, const Collective &) = default;
};

std::string between(const std::string &text, const std::string &begin, const std::string &end) {
  size_t from = text.find(begin);
  if (from == std::string::npos)
    return "";
  from += begin.size();
  return text.substr(from, text.find(end, from) - from);
}

std::vector<Collective> collectives(const std::string &text) {
  std::vector<Collective> all;
  std::istringstream lines(text);
  std::string line;
  size_t repeatIndent = std::string::npos;
  while (std::getline(lines, line)) {
    size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos)
      continue;
    if (line.find("= cleave.repeat ") != std::string::npos)
      repeatIndent = indent;
    else if (line[indent] == '}' && indent == repeatIndent)
      repeatIndent = std::string::npos;
    for (const char *op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}) {
      size_t at = line.find(std::string("cleave.") + op + " ");
      if (at == std::string::npos)
        continue;
      Collective c;
      c.op = op;
      std::istringstream words(line.substr(at + 8 + c.op.size()));
      words >> c.reduction;
      if (c.reduction[0] == '%')
        c.reduction.clear();
      c.axes = between(line, "#cleave.axis<", "]");
      if (!c.axes.empty())
        c.axes.pop_back();
      if (line.find("cleave.phase") != std::string::npos)
        c.phase = between(line, "cleave.phase = \"", "\"");
      c.types = line.substr(line.rfind(" : <"));
      c.inLayer = repeatIndent != std::string::npos;
      all.push_back(c);
    }
  }
  return all;
}

int count(const std::vector<Collective> &all, const std::string &axes, const std::string &phase,
          bool inLayer) {
  int n = 0;
  for (const Collective &c : all)
    n += c.axes == axes && c.phase == phase && c.inLayer == inLayer;
  return n;
}

/// What the model's names are called: itself, or something else.
using Names = std::function<std::string(const std::string &)>;
std::string itself(const std::string &name) { return name; }

/// Megatron's pattern on the tp axis, for a loss of GPT-2 and its way back.
void expectMegatron(const std::string &text, const Names &called) {
  std::vector<Collective> all = collectives(text);
  for (const Collective &c : all) {
    EXPECT_EQ(c.op, "all_reduce");
    // Neither logits nor anything else that the vocabulary, the heads or the inner dim splits.
    if (c.axes == "tp")
      for (const char *split : {"vocab", "heads", "ffn"})
        EXPECT_EQ(c.types.find(called(split) + "="), std::string::npos) << c.types;
  }
  EXPECT_EQ(count(all, "tp", "forward", true), 2);
  EXPECT_EQ(count(all, "tp", "backward", true), 2);
  // The embedding; of the cross-entropy the maximum, the sum of exponentials and
  // the label's logit.
  EXPECT_EQ(count(all, "tp", "forward", false), 4);
  // What reaches the last norm from the logits.
  EXPECT_EQ(count(all, "tp", "backward", false), 1);
  int maxima = 0, rows = 0, widths = 0;
  for (const Collective &c : all) {
    if (c.axes != "tp" || c.phase != "forward" || c.inLayer)
      continue;
    maxima += c.reduction == "max";
    bool wide = c.types.find(called("width") + "=") != std::string::npos;
    widths += wide;
    rows += !wide;
  }
  EXPECT_EQ(maxima, 1);
  EXPECT_EQ(rows, 3);
  EXPECT_EQ(widths, 1);
}

CompileOptions sharded(CompileOptions options) {
  options.emit = EmitStage::Sharded;
  return options;
}

class Pattern : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(On, Pattern, ::testing::Values(tp(2), tp(3), tp(4), dpTp()),
                         [](const auto &info) { return info.param.name; });

TEST_P(Pattern, HasTwoAllReducesInALayerEachWay) {
  std::string text = emitted(gpt2(), GetParam(), sharded(trainStep(DType::F32)));
  expectMegatron(text, itself);
}

TEST_P(Pattern, IsTheSameInTheExecutable) {
  auto executable = compiled(gpt2(), GetParam(), trainStep(DType::F32));
  ASSERT_TRUE(executable);
  std::map<std::string, int64_t> executions;
  for (const CollectiveSite &site : executable->programs[0].collectiveSites) {
    EXPECT_EQ(site.kind, "all_reduce");
    if (site.axes == "tp")
      executions[site.phase] += site.executions;
  }
  EXPECT_EQ(executions["forward"], 2 * 2 + 4);
  EXPECT_EQ(executions["backward"], 2 * 2 + 1);
}

TEST(PatternOf, DataParallelismReducesEachGradientOnce) {
  std::vector<Collective> all = collectives(emitted(gpt2(), dp(2), sharded(trainStep(DType::F32))));
  int gradients = 0;
  for (const Collective &c : all) {
    EXPECT_EQ(c.op, "all_reduce");
    EXPECT_EQ(c.axes, "dp");
    gradients += c.phase == "backward";
  }
  EXPECT_EQ(gradients, 20);                         // params; the tied one once
  EXPECT_EQ(count(all, "dp", "forward", false), 2); // the loss's sum and its count
}

TEST(PatternOf, TwoLayersOrTwentyAreOneText) {
  Model deep = gpt2();
  for (auto &[name, value] : deep.settings)
    if (name == "layers")
      value = "20";
  auto a = collectives(emitted(gpt2(), tp(2), sharded(gradientsOf("loss", DType::F32))));
  auto b = collectives(emitted(deep, tp(2), sharded(gradientsOf("loss", DType::F32))));
  EXPECT_EQ(a.size(), 9u);
  EXPECT_TRUE(a == b);
}

/// Where nothing is split there is nothing to reduce.
TEST(PatternOf, OneRankHasNone) {
  EXPECT_TRUE(collectives(emitted(gpt2(), oneRank(), sharded(trainStep(DType::F32)))).empty());
}

//===----------------------------------------------------------------------===//
// Other names
//===----------------------------------------------------------------------===//

const std::vector<std::string> hyperparameters = {"vocab", "positions", "width", "layers",
                                                  "heads", "head_dim",  "ffn"};
const std::vector<std::string> freeDims = {"batch", "seq"};
const std::vector<std::string> params = {"wte", "wpe", "wq", "wk", "wv", "bq", "bk",
                                         "bv",  "wo",  "bo", "w1", "b1", "w2", "b2"};
const std::vector<std::string> others = {
    "dropout_rate", "gpt2",   "layer",  "n1",      "n2",  "body", "last", "h", "a", "x", "m", "i",
    "logits",       "tokens", "labels", "forward", "loss"};

/// Each word of the model's own becomes `called(word)`; comments, keywords,
/// builtins, the plans' names and the mesh's axes stay.
std::string renamed(const std::string &text, const Names &called) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '#') {
      while (i < text.size() && text[i] != '\n')
        out += text[i++];
    } else if (std::isalpha(static_cast<unsigned char>(text[i])) || text[i] == '_') {
      std::string word;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_'))
        word += text[i++];
      out += called(word);
    } else {
      out += text[i++];
    }
  }
  return out;
}

/// The part of the text in front of the weights' table and behind it: the table
/// has the names of a file in it.
std::string withoutWeights(const std::string &text) {
  size_t begin = text.find("  weights huggingface {");
  size_t end = text.find("\n  }\n", begin);
  return text.substr(0, begin) + text.substr(end + 5);
}

Names fromTable(std::map<std::string, std::string> table) {
  return [table = std::move(table)](const std::string &word) {
    auto found = table.find(word);
    return found == table.end() ? word : found->second;
  };
}

/// Names that say nothing.
Names meaningless() {
  std::map<std::string, std::string> table;
  size_t n = 0;
  for (const auto *list : {&others, &params, &freeDims, &hyperparameters})
    for (const std::string &word : *list)
      table[word] = "z" + std::to_string(n++ * 37 % 101);
  return fromTable(table);
}

/// Names that say something wrong: `width` for the vocabulary, `bq` for `wk`.
Names misleading() {
  std::map<std::string, std::string> table;
  for (const auto *list : {&params, &freeDims, &hyperparameters, &others})
    for (size_t i = 0; i < list->size(); ++i)
      table[(*list)[i]] = (*list)[(i + 2) % list->size()];
  table["batch"] = "seq";
  table["seq"] = "batch";
  return fromTable(table);
}

Model renamedGpt2(const Names &called) {
  Model model = gpt2();
  model.text = renamed(withoutWeights(model.text), called);
  for (auto &[name, value] : model.settings)
    name = called(name);
  std::map<std::string, int64_t> sizes;
  for (const auto &[name, size] : model.sizes)
    sizes[called(name)] = size;
  model.sizes = sizes;
  return model;
}

/// "body.n1.weight" with each of its words renamed.
Tensors renamedTensors(const Tensors &tensors, const Names &called) {
  Tensors result;
  for (const auto &[name, value] : tensors)
    result.emplace(renamed(name, called), value);
  return result;
}

CompileOptions renamedEntry(CompileOptions options, const Names &called) {
  options.entries[0].function = called(options.entries[0].function);
  return options;
}

struct Naming {
  std::string name;
  Names called;
  Layout layout;
};
std::ostream &operator<<(std::ostream &os, const Naming &naming) { return os << naming.name; }

class Renamed : public ::testing::TestWithParam<Naming> {};
INSTANTIATE_TEST_SUITE_P(Names, Renamed,
                         ::testing::Values(Naming{"meaningless_tp2", meaningless(), tp(2)},
                                           Naming{"misleading_tp2", misleading(), tp(2)},
                                           Naming{"meaningless_dp2_tp2", meaningless(), dpTp()},
                                           Naming{"misleading_dp2_tp2", misleading(), dpTp()}),
                         [](const auto &info) { return info.param.name; });

TEST_P(Renamed, KeepsNoNameOfItsOwn) {
  const Names &called = GetParam().called;
  std::map<std::string, int> seen;
  for (const auto *list : {&params, &freeDims, &hyperparameters, &others})
    for (const std::string &word : *list) {
      EXPECT_NE(called(word), word);
      EXPECT_EQ(++seen[called(word)], 1) << word;
    }
}

TEST_P(Renamed, HasTheSameCollectives) {
  const Names &called = GetParam().called;
  std::string plain = emitted(gpt2(), GetParam().layout, sharded(trainStep(DType::F32)));
  std::string text = emitted(renamedGpt2(called), GetParam().layout,
                             sharded(renamedEntry(trainStep(DType::F32), called)));
  expectMegatron(text, called);
  auto expected = collectives(plain);
  for (Collective &c : expected)
    c.types = renamed(c.types, called);
  EXPECT_TRUE(expected == collectives(text));
}

TEST_P(Renamed, TrainsToTheSameBits) {
  const Names &called = GetParam().called;
  Tensors weights = oracle("gpt2/weights.safetensors"), inputs = oracle("gpt2/inputs.safetensors");
  auto plain = started(compiled(gpt2(), GetParam().layout, trainStep(DType::F32)));
  auto other = started(compiled(renamedGpt2(called), GetParam().layout,
                                renamedEntry(trainStep(DType::F32), called)));
  ASSERT_TRUE(plain && other);
  setParams(*plain, weights);
  setParams(*other, renamedTensors(weights, called));
  for (int64_t step = 0; step < 3; ++step) {
    Scalars scalars = {{"seed", int64_t(1)}, {"step", step}, {"lr", 1e-3}};
    Tensors a = ran(*plain, "train_step", inputs, scalars);
    Tensors b = ran(*other, "train_step", renamedTensors(inputs, called), scalars);
    EXPECT_TRUE(sameBits(a, b)) << step;
  }
  EXPECT_TRUE(sameBits(renamedTensors(persistent(*plain), called), persistent(*other)));
}

} // namespace
