//===- Activations.cpp - what layers save, as text ------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Activations.h"

namespace cleave::tool {

static double sbh(const TransformerSizes &z) {
  return double(z.sequence) * double(z.rows) * double(z.width);
}

double publishedBytes(const TransformerSizes &z, bool withScores) {
  double t = double(z.ranks);
  double scores = withScores ? 5 * double(z.heads) * double(z.sequence) / double(z.width) : 0;
  if (z.sequenceSplit)
    return sbh(z) / t * (34 + scores);
  return sbh(z) * (10 + 24 / t + scores / t);
}

static std::string formula(const TransformerSizes &z) {
  if (z.ranks == 1)
    return "s b h (34 + 5 a s / h)";
  return z.sequenceSplit ? "s b h / t (34 + 5 a s / h)" : "s b h (10 + 24 / t + 5 a s / (h t))";
}

static std::string formulaText(const LayerActivations &layer, bool kept) {
  const TransformerSizes &z = *layer.sizes;
  auto bytes = [](double value) { return bytesText(static_cast<int64_t>(value)); };
  if (layer.saved.size() == 1 && layer.saved[0].op == "input")
    return fmt::format("published (arXiv 2205.05198, section 5), recomputed in full, of 16-bit "
                       "values: 2 s b h{} = {}\n",
                       z.sequenceSplit ? " / t" : "",
                       bytes(2 * sbh(z) / (z.sequenceSplit ? double(z.ranks) : 1)));
  double all = publishedBytes(z, true), without = publishedBytes(z, false);
  std::string text = fmt::format(
      "published (arXiv 2205.05198, section 4), of 16-bit values: {} = {}\n"
      "  with b={} s={} h={} a={} t={}; attention's scores are {} of it, without them {}\n"
      "  in values of {} bytes as here, masks of one: at most {} without the scores\n",
      formula(z), bytes(all), z.rows, z.sequence, z.width, z.heads, z.ranks, bytes(all - without),
      bytes(without), layer.elementBytes, bytes(without * double(layer.elementBytes) / 2));
  if (kept && z.sequenceSplit && z.ranks > 1)
    text +=
        fmt::format("  with both gathered inputs kept: s b h (4 + 30 / t + 5 a s / (h t)) = {}\n",
                    bytes(all + 4 * sbh(z) * (1 - 1 / double(z.ranks))));
  text += fmt::format(
      "here {}: scores, their softmax and its dropout are never stored, the kernel computes them "
      "again\nfrom a number for each row; dropout's masks follow from seed and position; what is "
      "elementwise or\nbehind a norm is computed again, as the plan's `recompute` says; a value "
      "that several read is kept once\n",
      bytesText(layer.bytes()));
  return text;
}

std::string activationsText(const std::vector<LayerActivations> &all, bool kept) {
  if (all.empty())
    return "no repeat saves anything for a backward pass\n";
  std::string text;
  for (const LayerActivations &layer : all) {
    text += fmt::format(
        "{}saved by each of {}={}{}, on one rank\n", text.empty() ? "" : "\n", layer.dim,
        layer.layers,
        layer.again ? ", computed again in the backward pass and kept for one group at a time"
                    : "");
    bool letters = layer.sizes.has_value();
    Table table(letters ? std::vector<std::string>{"by", "source", "value", "bytes", "/ s b h"}
                        : std::vector<std::string>{"by", "source", "value", "bytes"},
                {true, true, true});
    auto share = [&](int64_t bytes) {
      return fmt::format("{:.2f}", double(bytes) / sbh(*layer.sizes));
    };
    auto row = [&](std::string by, std::string source, std::string type, int64_t bytes) {
      std::vector<std::string> cells = {std::move(by), source.substr(source.rfind('/') + 1),
                                        std::move(type), bytesText(bytes)};
      if (letters)
        cells.push_back(share(bytes));
      table.row(cells);
    };
    for (const SavedActivation &value : layer.saved)
      row(value.op, value.source, value.type, value.bytes);
    row("a layer", "", "", layer.bytes());
    row(fmt::format("all {}", layer.layers), "", "", layer.bytes() * layer.layers);
    text += table.text("  ");
    if (letters)
      text += formulaText(layer, kept);
  }
  return text;
}

std::string gatheredText(const std::vector<GatheredInputs> &all, bool kept) {
  if (all.empty())
    return "";
  Table table({"needed gathered by the backward pass", "", "again: ring bytes", "kept: memory"},
              {true, true});
  int64_t ring = 0, memory = 0;
  for (const GatheredInputs &of : all) {
    for (const GatheredInput &input : of.inputs)
      table.row({input.source.substr(input.source.rfind('/') + 1), input.type,
                 bytesText(input.ringBytes), bytesText(input.bytes)});
    if (of.freed)
      table.row({"what is saved for these alone", "", "", "-" + bytesText(of.freed)});
    if (of.times > 1) {
      int64_t again = of.times / of.layers; // groups of layers, micro-batches
      table.row(
          {(of.dim.empty() ? "" : fmt::format("all {} of {}", of.layers, of.dim)) +
               (again == 1 ? ""
                           : fmt::format("{}{} times a step", of.dim.empty() ? "" : ", ", again)),
           "", bytesText(of.ringBytes()), bytesText(of.bytes())});
    }
    ring += of.ringBytes();
    memory += of.bytes();
  }
  return table.text() +
         fmt::format("`gathered again`{}: {} more in the ring of each rank in a step; `gathered "
                     "kept`{}: {} more memory\n",
                     kept ? "" : ", as here", bytesText(ring), kept ? ", as here" : "",
                     bytesText(memory));
}

Json gatheredJson(const std::vector<GatheredInputs> &all, bool kept) {
  Json json = {{"kept", kept}, {"again_ring_bytes", 0}, {"kept_bytes", 0}};
  int64_t ring = 0, memory = 0;
  json["layers"] = Json::array();
  for (const GatheredInputs &of : all) {
    Json inputs = Json::array();
    for (const GatheredInput &input : of.inputs)
      inputs.push_back({{"source", input.source},
                        {"type", input.type},
                        {"ring_bytes", input.ringBytes},
                        {"bytes", input.bytes}});
    json["layers"].push_back({{"dim", of.dim},
                              {"layers", of.layers},
                              {"times", of.times},
                              {"inputs", inputs},
                              {"freed_bytes", of.freed}});
    ring += of.ringBytes();
    memory += of.bytes();
  }
  json["again_ring_bytes"] = ring;
  json["kept_bytes"] = memory;
  return json;
}

Json activationsJson(const std::vector<LayerActivations> &all) {
  Json list = Json::array();
  for (const LayerActivations &layer : all) {
    Json saved = Json::array();
    for (const SavedActivation &value : layer.saved)
      saved.push_back({{"op", value.op},
                       {"source", value.source},
                       {"type", value.type},
                       {"bytes", value.bytes}});
    Json entry = {{"dim", layer.dim},       {"layers", layer.layers},
                  {"again", layer.again},   {"saved", saved},
                  {"bytes", layer.bytes()}, {"element_bytes", layer.elementBytes}};
    if (const auto &z = layer.sizes)
      entry["published"] = {{"b", z->rows},
                            {"s", z->sequence},
                            {"h", z->width},
                            {"a", z->heads},
                            {"t", z->ranks},
                            {"sequence_split", z->sequenceSplit},
                            {"bytes", publishedBytes(*z, true)},
                            {"bytes_without_scores", publishedBytes(*z, false)}};
    list.push_back(std::move(entry));
  }
  return list;
}

} // namespace cleave::tool
