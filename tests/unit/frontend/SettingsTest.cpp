//===- SettingsTest.cpp - plans, --set, --mesh, sizes, diagnostics -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Support.h"

using namespace cleave;
using namespace cleave::test;

namespace {

using Texts = std::vector<std::string>;

/// The errors' texts; none of them has a place, for they come from options.
Texts textsOf(const std::string &text, const CheckOptions &options) {
  Texts out;
  for (const Finding &fault : findingsOf(text, options)) {
    EXPECT_EQ(fault.line, 0u) << fault;
    out.push_back(fault.text);
  }
  return out;
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

TEST(Plans, RulesAndPins) {
  auto p = programOf(withPlans(R"(plan p for m on (dp = 2, tp, sp) {
    shard batch by dp
    shard ffn else width by tp, sp
    at w: replicate over tp
    at f.h: shard width by tp else batch by tp
    at body.x: replicate
  })"));
  ASSERT_TRUE(p);
  const checked::Plan *plan = p->plan("p");
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->axes.size(), 3u);
  EXPECT_EQ(plan->axes[0].size, 2);
  EXPECT_FALSE(plan->axes[1].size);
  ASSERT_EQ(plan->rules.size(), 2u);
  ASSERT_EQ(plan->rules[1].alternatives.size(), 2u);
  for (const auto &alternative : plan->rules[1].alternatives)
    EXPECT_EQ(alternative.axes, (Texts{"tp", "sp"})) << "`else` has the axes of both sides";
  EXPECT_EQ(plan->rules[1].alternatives[1].dims[0].name, "width");
  ASSERT_EQ(plan->pins.size(), 3u);
  EXPECT_TRUE(plan->pins[0].isParam && plan->pins[0].replicate);
  EXPECT_EQ(plan->pins[0].axes, Texts{"tp"});
  EXPECT_FALSE(plan->pins[1].isParam);
  EXPECT_EQ(plan->pins[1].axes, Texts{"tp"});
  EXPECT_EQ(plan->pins[2].axes, (Texts{"dp", "tp", "sp"})) << "all axes";
}

TEST(Plans, CompoundDimsKeepTheirAtoms) {
  auto p = programOf(R"(model m(kv = 2, group = 3) {
    dim heads = kv * group
    fn f(x: [heads]) -> [heads] { return x }
  }
  plan p for m on (tp) { shard heads by tp })");
  ASSERT_TRUE(p);
  EXPECT_EQ(p->plans[0].rules[0].alternatives[0].dims[0].name, "heads");
  EXPECT_EQ(p->plans[0].rules[0].alternatives[0].dims[0].atoms, (Texts{"kv", "group"}));
}

TEST(Plans, OfAnotherFile) {
  CheckOptions options = inventing();
  options.planFiles.push_back({"plans.cleave", "plan other for m on (tp) { shard ffn by tp }"});
  options.plan = "other";
  options.mesh = {{"tp", 2}};
  auto p = programOf(withPlans(""), options);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->plan("other")->axes[0].size, 2);
  EXPECT_EQ(p->sources.locate(p->plan("other")->range).file, "plans.cleave");

  options.planFiles = {{"plans.cleave", "plan other for m on (tp) { shard ff by tp }"}};
  Diagnostics diagnostics;
  auto wrong = check({"model.cleave", withPlans("")}, options, diagnostics);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("plans.cleave:1:34: error: no dim is called `ff`"),
            std::string::npos)
      << wrong.error().message;
}

TEST(Plans, OfOtherModelsAreLeftAlone) {
  auto p = programOf(withPlans("model other { fn f() -> f32 { return 1.0 } }\n"
                               "plan p for other on (tp) { shard nothing by tp }\n"),
                     [] {
                       CheckOptions options = inventing();
                       options.model = "m";
                       return options;
                     }());
  ASSERT_TRUE(p);
  EXPECT_TRUE(p->plans.empty());
}

TEST(Mesh, SizesComeFromThePlanAndTheCommandLine) {
  CheckOptions options = inventing();
  std::string text =
      withPlans("plan p for m on (dp = 4, tp) { shard batch by dp; shard ffn by tp }");
  options.plan = "p";
  EXPECT_EQ(textsOf(text, options),
            Texts{"the axis `tp` of the plan `p` has no size | add `--mesh dp=2,tp=2`"});
  options.mesh = {{"tp", 3}};
  auto one = programOf(text, options);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->plans[0].axes[0].size, 4);
  EXPECT_EQ(one->plans[0].axes[1].size, 3);
  options.mesh = {{"tp", 3}, {"dp", 1}};
  EXPECT_EQ(programOf(text, options)->plans[0].axes[0].size, 1);
}

TEST(Mesh, Errors) {
  std::string text = withPlans("plan p for m on (tp) { shard ffn by tp }");
  CheckOptions options = inventing();
  options.mesh = {{"tp", 2}};
  EXPECT_EQ(textsOf(text, options), Texts{"--mesh is given, and no plan | add `--plan NAME`"});
  options.plan = "q";
  EXPECT_EQ(textsOf(text, options),
            Texts{"--plan q: the model `m` has no plan `q` | the plans are none, auto, p"});
  options.plan = "p";
  options.mesh = {{"tpp", 2}};
  EXPECT_EQ(textsOf(text, options),
            (Texts{"--mesh tpp=2: the plan `p` has no axis `tpp` | did you mean `tp`?",
                   "the axis `tp` of the plan `p` has no size | add `--mesh tp=2`"}));
  options.mesh = {{"tp", 2}, {"tp", 2}};
  EXPECT_EQ(textsOf(text, options), Texts{"--mesh tp=2: the axis `tp` is given twice"});
  for (int64_t size : {int64_t(0), int64_t(-1), int64_t(65537)}) {
    options.mesh = {{"tp", size}};
    EXPECT_EQ(textsOf(text, options),
              Texts{"--mesh tp=" + std::to_string(size) + ": an axis has 1 to 65536 ranks"});
  }
}

TEST(Mesh, OfAnAutomaticPlan) {
  std::string text = withPlans("plan p for m on (dp, tp) { shard batch by dp; shard ffn by tp }");
  CheckOptions options = inventing();
  options.plan = "auto";
  EXPECT_EQ(textsOf(text, options), Texts{"--plan auto: there is no mesh to split over | add "
                                          "`--mesh tp=2`, or `--ranks 2`"});
  options.mesh = {{"ffn", 2}};
  EXPECT_EQ(textsOf(text, options),
            Texts{"--mesh ffn=2: the axis has the name of a dim | give the axis another name"});
  options.mesh = {{"accumulate", 2}};
  EXPECT_EQ(textsOf(text, options), Texts{"--mesh accumulate=2: the axis has the name of the "
                                          "micro-batches | give the axis another name"});
  options.mesh = {{"x", 2}, {"x", 2}};
  EXPECT_EQ(textsOf(text, options), Texts{"--mesh x=2: the axis `x` is given twice"});
  options.mesh = {{"x", 2}, {"y", 3}};
  options.ranks = 6;
  auto made = programOf(text, options);
  ASSERT_TRUE(made && made->plan("auto"));
  EXPECT_TRUE(made->plan("auto")->automatic);
  ASSERT_EQ(made->plan("auto")->axes.size(), 2u);
  EXPECT_EQ(made->plan("auto")->axes[1].size, 3);

  options.plan = "p";
  EXPECT_EQ(textsOf(text, options), Texts{"--ranks 6: the plan `p` has axes of its own | write "
                                          "`--mesh dp=2,tp=2` instead, or `--plan auto`"});
  options.plan = "";
  EXPECT_EQ(textsOf(text, options), Texts{"--ranks is given, and no plan | add `--plan auto`"});
}

TEST(Mesh, PartsOfAnAxisDivideIt) {
  for (std::string sentence :
       {"shard ffn by tp:(2)3", "at w: replicate over tp:(2)3", "at w: zero 2 over tp:(2)3",
        "at [batch, ffn]: shard batch by tp:(2)3"}) {
    std::string text = withPlans("plan p for m on (tp) { auto; " + sentence + " }");
    CheckOptions options = inventing();
    options.plan = "p";
    options.mesh = {{"tp", 4}};
    std::vector<Finding> found = findingsOf(text, options);
    ASSERT_EQ(found.size(), 1u) << sentence;
    EXPECT_EQ(found[0].text, "`tp:(2)3`: the axis `tp` has 4 ranks, which are not in groups of 2 "
                             "and 3 | 2 * 3 must divide 4");
    EXPECT_GT(found[0].line, 1u) << sentence;
    options.mesh = {{"tp", 6}};
    EXPECT_TRUE(findingsOf(text, options).empty()) << sentence;
    options.mesh = {{"tp", 12}};
    EXPECT_TRUE(findingsOf(text, options).empty()) << sentence;
  }
}

//===----------------------------------------------------------------------===//
// Hyperparameters and sizes
//===----------------------------------------------------------------------===//

const char *const sizes = R"(model m(n_heads = 4, rate = 0.5, flag = true, must) {
  free batch, seq
  fn f(x: [batch, seq, n_heads]) -> [batch, seq, n_heads] { return x * rate }
})";

TEST(Set, ChangesHyperparameters) {
  CheckOptions options = inventing();
  options.settings = {{"n_heads", "8"}, {"rate", "0.25"}, {"flag", "false"}, {"must", "3"}};
  auto p = programOf(sizes, options);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->dim("n_heads")->size, 8);
  EXPECT_EQ(checked::toString(p->hyperparameters[1].value), "0.25");
  EXPECT_EQ(checked::toString(p->hyperparameters[2].value), "false");
  EXPECT_EQ(p->dim("must")->size, 3);
}

TEST(Set, Errors) {
  auto with = [](std::vector<std::pair<std::string, std::string>> settings) {
    CheckOptions options = inventing();
    options.settings = std::move(settings);
    options.settings.push_back({"must", "1"});
    return textsOf(sizes, options);
  };
  // B90: misspelt, twice, of the wrong kind.
  EXPECT_EQ(with({{"n_headz", "4"}}), Texts{"--set n_headz=4: the model `m` has no hyperparameter "
                                            "`n_headz` | did you mean `n_heads`?"});
  EXPECT_EQ(with({{"tpp", "2"}}), Texts{"--set tpp=2: the model `m` has no hyperparameter `tpp`"});
  EXPECT_EQ(with({{"n_heads", "4"}, {"n_heads", "4"}}),
            Texts{"--set n_heads=4: `n_heads` is set twice"});
  EXPECT_EQ(with({{"n_heads", "four"}}),
            Texts{"--set n_heads=four: the value is neither a number nor true or false"});
  EXPECT_EQ(with({{"n_heads", "4x"}}),
            Texts{"--set n_heads=4x: the value is neither a number nor true or false"});
  EXPECT_EQ(with({{"rate", "1e999"}}),
            Texts{"--set rate=1e999: the value is neither a number nor true or false"});
  EXPECT_EQ(with({{"rate", "true"}}),
            Texts{"--set rate=true: `rate` is a number, as its default 0.5"});
  EXPECT_EQ(with({{"flag", "1"}}),
            Texts{"--set flag=1: `flag` is true or false, as its default true"});
}

TEST(Set, ADimThatIsNoSizeIsAnErrorWhereItIsUsed) {
  for (const char *value : {"0", "-3", "0.5", "3000000000"}) {
    CheckOptions options = inventing();
    options.settings = {{"n_heads", value}, {"must", "1"}};
    auto faults = findingsOf(sizes, options);
    ASSERT_FALSE(faults.empty()) << value;
    EXPECT_EQ(std::pair(faults[0].line, faults[0].column), (std::pair<size_t, size_t>(3, 24)));
    EXPECT_EQ(faults[0].text,
              "`n_heads` is " + std::string(value) +
                  ", which is no size of a dim | sizes are whole numbers from 1 to 2147483647");
  }
}

TEST(Sizes, OfFreeDims) {
  CheckOptions options;
  options.settings = {{"must", "1"}};
  auto faults = findingsOf(sizes, options);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(
      faults[0],
      (Finding{2, 8,
               "the free dim `batch` has no size | it comes with the data, or give `--batch`"}));
  EXPECT_EQ(findingsOf("model m { free pixels\n fn f(x: [pixels]) -> f32 { return 1.0 } }",
                       CheckOptions()),
            (std::vector<Finding>{{1, 16,
                                   "the free dim `pixels` has no size | it comes with the data, or "
                                   "give `--dim pixels=...`"}}));
  options.freeSizes = {{"batch", 5}, {"seqq", 3}};
  options.defaultSizes = {{"seq", 7}, {"batch", 9}, {"else", 1}};
  EXPECT_EQ(
      textsOf(sizes, options),
      Texts{
          "the model `m` has no free dim `seqq`, whose size is given as 3 | did you mean `seq`?"});
  options.freeSizes = {{"batch", 5}};
  auto p = programOf(sizes, options);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->dim("batch")->size, 5);
  EXPECT_EQ(p->dim("seq")->size, 7);
  options.freeSizes["batch"] = 0;
  EXPECT_EQ(findingsOf(sizes, options),
            (std::vector<Finding>{
                {2, 8, "the dim `batch` has size 0 | sizes are from 1 to 2147483647"}}));
}

TEST(Models, OneIsChosen) {
  std::string text = "model first { fn f() -> f32 { return 1.0 } }\nmodel second { fn f() -> f32 { "
                     "return 2.0 } }\n";
  CheckOptions options;
  EXPECT_EQ(textsOf(text, options),
            Texts{"the file has several models: first, second | say which one is meant"});
  options.model = "secnd";
  EXPECT_EQ(textsOf(text, options),
            Texts{"the file has no model `secnd` | did you mean `second`?"});
  options.model = "second";
  EXPECT_EQ(programOf(text, options)->model, "second");
  options.model = "";
  EXPECT_EQ(textsOf("", options), Texts{"the file has no model | write `model name(...) { ... }`"});
}

//===----------------------------------------------------------------------===//
// Diagnostics
//===----------------------------------------------------------------------===//

std::string rendered(const std::string &text) {
  auto program = check({"m.cleave", text}, inventing());
  EXPECT_FALSE(program);
  return program ? "" : program.error().message;
}

TEST(Rendering, CaretUnderTabsAndWideCharacters) {
  EXPECT_EQ(rendered("model m(a = 2) {\n\tfn f() -> f32 { return\tb } # ä\n}"),
            "m.cleave:2:25: error: nothing here is called `b`\n"
            "   2 | \tfn f() -> f32 { return\tb } # ä\n"
            "     | \t                      \t^\n");
  EXPECT_EQ(rendered("model m { weights \"ä€😀\" }"),
            "m.cleave:1:19: error: expected the name of the weights' format, found a string\n"
            "   1 | model m { weights \"ä€😀\" }\n"
            "     |                   ^~~~~\n");
}

TEST(Rendering, BytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(rendered(std::string("model m { \xff\x00\x1b[m }", 17)),
            "m.cleave:1:11: error: `\\xff\\x00\\x1b` has no meaning here\n"
            "   1 | model m { \\xff\\x00\\x1b[m }\n"
            "     |           ^~~~~~~~~~~~\n"
            "  hint: names are ASCII letters, digits and `_`\n");
}

TEST(Rendering, LongLinesAreShownAroundThePlace) {
  std::string text = rendered("model m { fn f() -> f32 { return " + std::string(500, ' ') + "b " +
                              std::string(500, ' ') + "} }");
  std::istringstream lines(text);
  std::string head, shown, under;
  std::getline(lines, head);
  std::getline(lines, shown);
  std::getline(lines, under);
  EXPECT_EQ(head, "m.cleave:1:534: error: nothing here is called `b`");
  EXPECT_LT(shown.size(), 140u);
  EXPECT_EQ(shown.find('b'), under.find('^'));
}

// Found by the fuzzer: a long run of bytes that continue a character that never began.
TEST(Rendering, LongRunsOfContinuationBytes) {
  for (size_t before : {0, 50, 100, 200, 500})
    for (size_t after : {0, 1, 200})
      for (const char *last : {"%", "\"", "@@", "3x"}) {
        std::string text = "model m { # " + std::string(before, '\x80') + "\nweights \"" +
                           std::string(before, '\x80') + "\" " + last + std::string(after, '\x80');
        EXPECT_NE(rendered(text).find("error: "), std::string::npos);
      }
}

TEST(Rendering, TwentyErrorsAndTheirNumber) {
  std::string text = "model m {\n";
  for (int i = 0; i < 30; ++i)
    text += "  dim d" + std::to_string(i) + " = q" + std::to_string(i) + "\n";
  text = rendered(text + "  fn f() -> f32 { return 1.0 }\n}");
  size_t count = 0;
  for (size_t at = 0; (at = text.find("error: ", at)) != std::string::npos; ++at)
    ++count;
  EXPECT_EQ(count, 20u);
  EXPECT_NE(text.find("and 10 other errors\n"), std::string::npos) << text;
}

TEST(Rendering, AnErrorIsSaidOnceWhereverItIsInlined) {
  std::string text = rendered(R"(model m(a = 2) {
  fn f(x: [a]) -> f32 { return x }
  fn g(x: [a]) -> f32 { return f(x) + f(x) + f(x) }
})");
  EXPECT_EQ(text, "m.cleave:2:32: error: the function `f` returns [a=2] and declares f32\n"
                  "   2 |   fn f(x: [a]) -> f32 { return x }\n"
                  "     |                                ^\n"
                  "m.cleave:2:19: note: the declaration\n"
                  "   2 |   fn f(x: [a]) -> f32 { return x }\n"
                  "     |                   ^~~\n");
}

TEST(NearMatch, Words) {
  auto near = [](const char *word) {
    return nearest(word, {"heads", "head_dim", "layers", "tp", "causal"});
  };
  EXPECT_EQ(near("head"), "heads");
  EXPECT_EQ(near("haeds"), "heads");
  EXPECT_EQ(near("Heads"), "heads");
  EXPECT_EQ(near("layer"), "layers");
  EXPECT_EQ(near("tp_size"), "tp");
  EXPECT_EQ(near("pt"), "tp");
  EXPECT_EQ(near("casual"), "causal");
  EXPECT_EQ(near("vocabulary"), "");
  EXPECT_EQ(near("x"), "");
  EXPECT_EQ(near(""), "");
}

} // namespace
