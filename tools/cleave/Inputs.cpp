//===- Inputs.cpp - values for a program's arguments ----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Inputs.h"

#include "Options.h"

#include "runtime/core/Init.h"
#include "runtime/core/Philox.h"
#include "runtime/core/Shard.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace cleave::tool {

static bool isFloat(DType type) {
  return type == DType::F32 || type == DType::F64 || type == DType::BF16 || type == DType::F16;
}

static int64_t integerAt(const TensorView &from, int64_t index) {
  if (from.dtype == DType::I64) {
    int64_t value;
    std::memcpy(&value, from.data + index * 8, 8);
    return value;
  }
  if (from.dtype == DType::I32) {
    int32_t value;
    std::memcpy(&value, from.data + index * 4, 4);
    return value;
  }
  return from.data[index] != 0;
}

Result<HostTensor> exactly(const TensorView &from, DType type, const std::string &what,
                           bool &rounded) {
  if (from.dtype == type || (isFloat(from.dtype) && isFloat(type))) {
    if (byteSize(type) < byteSize(from.dtype))
      rounded = true;
    auto converted = convert(from, type);
    if (!converted)
      return Error{what + ": " + converted.error().message};
    return converted;
  }
  if (isFloat(from.dtype) != isFloat(type))
    return Error{fmt::format("{} is {}, but {} is needed", what, name(from.dtype), name(type))};
  HostTensor to(type, from.shape);
  for (int64_t i = 0; i < from.elements(); ++i) {
    int64_t value = integerAt(from, i);
    bool fits = type == DType::I64 ||
                (type == DType::I32 && value >= std::numeric_limits<int32_t>::min() &&
                 value <= std::numeric_limits<int32_t>::max()) ||
                (type == DType::I1 && (value == 0 || value == 1));
    if (!fits)
      return Error{fmt::format("{}: element {} is {}, which is no {}", what, i, value, name(type))};
    if (type == DType::I64)
      to.as<int64_t>()[i] = value;
    else if (type == DType::I32)
      to.as<int32_t>()[i] = static_cast<int32_t>(value);
    else
      to.as<char>()[i] = static_cast<char>(value);
  }
  return to;
}

//===----------------------------------------------------------------------===//
// Tensors in files
//===----------------------------------------------------------------------===//

Compounds compoundDims(const CheckedProgram &program) {
  Compounds compounds;
  for (const checked::NamedDim &dim : program.dims)
    if (dim.atoms.size() > 1)
      compounds.push_back(dim);
  return compounds;
}

/// Whether the compound's atoms stand at `at`.
static bool standsAt(const checked::NamedDim &compound, const std::vector<checked::Atom> &dims,
                     size_t at) {
  return at + compound.atoms.size() <= dims.size() &&
         std::equal(
             compound.atoms.begin(), compound.atoms.end(),
             dims.begin() + static_cast<ptrdiff_t>(at),
             [](const std::string &name, const checked::Atom &dim) { return name == dim.name; });
}

static bool groupFrom(const std::vector<checked::Atom> &dims, size_t at,
                      const std::vector<int64_t> &shape, const Compounds &compounds,
                      std::vector<size_t> &groups) {
  if (groups.size() == shape.size())
    return at == dims.size();
  if (at == dims.size())
    return false;
  int64_t size = shape[groups.size()];
  auto take = [&](size_t count) {
    groups.push_back(count);
    if (groupFrom(dims, at + count, shape, compounds, groups))
      return true;
    groups.pop_back();
    return false;
  };
  if ((dims[at].size == 0 || dims[at].size == size) && take(1))
    return true;
  for (const checked::NamedDim &compound : compounds) {
    if (!standsAt(compound, dims, at))
      continue;
    int64_t product = 1;
    for (size_t i = 0; i < compound.atoms.size(); ++i)
      product *= dims[at + i].size;
    if (product == size && product > 0 && take(compound.atoms.size()))
      return true;
  }
  return false;
}

std::optional<std::vector<size_t>> groupDims(const std::vector<checked::Atom> &dims,
                                             const std::vector<int64_t> &shape,
                                             const Compounds &compounds) {
  std::vector<size_t> groups;
  if (!groupFrom(dims, 0, shape, compounds, groups))
    return std::nullopt;
  return groups;
}

std::string dimsText(const std::vector<checked::Atom> &dims, const Compounds &compounds) {
  std::string text, merged;
  for (size_t i = 0; i < dims.size(); ++i) {
    text += fmt::format("{}{}", i ? ", " : "", dims[i].name);
    if (dims[i].size)
      text += fmt::format("={}", dims[i].size);
    for (const checked::NamedDim &compound : compounds)
      if (standsAt(compound, dims, i))
        merged += fmt::format("{}{} as {}", merged.empty() ? " (also with " : ", ",
                              fmt::join(compound.atoms, ", "), compound.name);
  }
  return fmt::format("[{}]{}{}", text, merged, merged.empty() ? "" : ")");
}

Result<HostTensor> readFor(const Argument &argument, const SafetensorsFile &file,
                           const Compounds &compounds, bool &rounded) {
  auto view = file.view(argument.name);
  if (!view)
    return view.error();
  std::vector<checked::Atom> dims;
  for (const DimLayout &dim : argument.layout.dims)
    dims.push_back({dim.name, dim.size});
  if (!groupDims(dims, view->shape, compounds))
    return Error{fmt::format("'{}': {} '{}' is {} {}, but the file has {}", file.path(),
                             argument.role == Argument::Role::Param ? "param" : "input",
                             argument.name, name(argument.layout.dtype), dimsText(dims, compounds),
                             shapeText(view->shape))};
  view->shape = globalShape(argument.layout);
  return exactly(*view, argument.layout.dtype,
                 fmt::format("'{}': '{}'", file.path(), argument.name), rounded);
}

//===----------------------------------------------------------------------===//
// Made-up values
//===----------------------------------------------------------------------===//

static HostTensor randomInput(const Argument &argument, uint64_t seed, uint32_t step) {
  DType type = argument.layout.dtype;
  HostTensor to(type, globalShape(argument.layout));
  Philox random(seed, step, siteHash("input." + argument.name));
  int64_t last = to.shape.empty() ? 1 : to.shape.back();
  for (int64_t i = 0; i < to.elements(); ++i) {
    Philox::Words words = random.words(static_cast<uint64_t>(i));
    auto integer = [&]() -> int64_t {
      if (argument.rangeEnd < 0)
        return i % last;
      if (argument.hasIgnore && words[1] % 8 == 0)
        return argument.ignore;
      return static_cast<int64_t>(words[0] % static_cast<uint64_t>(argument.rangeEnd));
    };
    auto real = static_cast<float>(random.normal(static_cast<uint64_t>(i)));
    if (type == DType::F64)
      to.as<double>()[i] = real;
    else if (type == DType::F32)
      to.as<float>()[i] = real;
    else if (type == DType::I64)
      to.as<int64_t>()[i] = integer();
    else if (type == DType::I32)
      to.as<int32_t>()[i] = static_cast<int32_t>(integer());
    else if (type == DType::I1)
      to.as<char>()[i] = words[0] % 8 != 0;
  }
  if (type == DType::BF16 || type == DType::F16) {
    HostTensor wide(DType::F32, to.shape);
    for (int64_t i = 0; i < to.elements(); ++i)
      wide.as<float>()[i] = static_cast<float>(random.normal(static_cast<uint64_t>(i)));
    if (auto narrow = convert(wide.view(), type))
      return std::move(*narrow);
  }
  return to;
}

Inputs randomInputs(const Program &program, uint64_t seed, uint32_t step) {
  Inputs inputs;
  for (const Argument &argument : program.arguments)
    if (argument.role == Argument::Role::Input)
      inputs.emplace(argument.name, randomInput(argument, seed, step));
  return inputs;
}

Scalars scalarsOf(const Program &program, uint64_t seed, int64_t step, double lr) {
  Scalars scalars;
  for (const Argument &argument : program.arguments) {
    if (argument.role != Argument::Role::Scalar)
      continue;
    if (argument.name == "seed")
      scalars["seed"] = static_cast<int64_t>(seed);
    else if (argument.name == "step")
      scalars["step"] = step;
    else if (argument.name == "lr")
      scalars["lr"] = lr;
  }
  return scalars;
}

Result<HostTensor> initialParam(const std::string &path, const std::string &init,
                                const std::vector<int64_t> &shape, DType type, uint64_t seed) {
  auto spec = InitSpec::parse(init);
  if (!spec)
    return Error{fmt::format("'{}': {}", path, spec.error().message), Fault::Internal};
  TensorLayout layout{type, {}};
  for (size_t i = 0; i < shape.size(); ++i)
    layout.dims.push_back({std::to_string(i), shape[i], {}});
  HostTensor to(type, shape);
  fillInitial(*spec, seed, path, layout, RankPosition({}, 0), to.data.data());
  return to;
}

//===----------------------------------------------------------------------===//
// Weights in files
//===----------------------------------------------------------------------===//

Result<WeightsReport> loadWeights(Session &session, const SafetensorsFile &file,
                                  const Compounds &compounds) {
  WeightsReport report;
  std::vector<std::string> known, missing;
  for (const auto &[key, entry] : file.entries())
    known.push_back(key);
  size_t used = 0;
  for (const Argument *param : session.persistentArguments()) {
    if (param->role != Argument::Role::Param)
      continue;
    if (!file.contains(param->name)) {
      missing.push_back(param->name);
      continue;
    }
    auto value = readFor(*param, file, compounds, report.rounded);
    if (!value)
      return value.error();
    if (auto status = session.set(param->name, value->view()); !status)
      return Error{fmt::format("'{}': {}", file.path(), status.error().message),
                   status.error().fault};
    ++used;
  }
  if (!missing.empty()) {
    std::string hint = meant(missing.front(), known);
    size_t count = missing.size();
    missing.resize(std::min<size_t>(count, 6));
    return Error{fmt::format("'{}' lacks {} of the params: {}{}{}", file.path(), count,
                             fmt::join(missing, ", "), count > 6 ? ", ..." : "", hint)};
  }
  report.ignored = known.size() - used;
  return report;
}

Status saveWeights(Session &session, const std::string &path,
                   const std::map<std::string, std::string> &metadata) {
  std::vector<std::pair<std::string, HostTensor>> values;
  for (const Argument *param : session.persistentArguments()) {
    if (param->role != Argument::Role::Param)
      continue;
    auto value = session.get(param->name);
    if (!value)
      return value.error();
    values.emplace_back(param->name, std::move(*value));
  }
  std::vector<NamedTensor> tensors;
  for (const auto &[name, value] : values)
    tensors.push_back({name, value.view()});
  return writeSafetensors(path, tensors, metadata);
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

namespace {
/// An input that text is made into.
struct TextInput {
  const char *name;
  DType type = DType::I32;
  size_t dims = 2; ///< [batch, seq] or [batch]
};
const std::vector<TextInput> ofRows = {{"tokens"}, {"labels"}, {"pos"}};
const std::vector<TextInput> ofPairs = {
    {"tokens"}, {"kind"}, {"valid", DType::I1}, {"labels"}, {"next", DType::I32, 1}};

const TextInput *find(const std::vector<TextInput> &inputs, const std::string &name) {
  auto found = std::find_if(inputs.begin(), inputs.end(),
                            [&](const TextInput &input) { return input.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

std::string names(const std::vector<TextInput> &inputs) {
  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i)
    text += fmt::format("{}{}",
                        i == 0                   ? ""
                        : i + 1 == inputs.size() ? " and "
                                                 : ", ",
                        inputs[i].name);
  return text;
}
} // namespace

Result<TextSource> TextSource::open(const std::string &path, const Program &program,
                                    uint64_t seed) {
  std::vector<const Argument *> inputs;
  bool pairs = false;
  for (const Argument &argument : program.arguments)
    if (argument.role == Argument::Role::Input) {
      inputs.push_back(&argument);
      pairs |= find(ofPairs, argument.name) && !find(ofRows, argument.name);
    }
  if (inputs.empty())
    return Error{"the function takes no inputs: there is nothing that text could be for"};
  const std::vector<TextInput> &known = pairs ? ofPairs : ofRows;
  TextSource source;
  std::vector<int64_t> shape; // [batch, seq], as far as known
  for (const Argument *argument : inputs) {
    const TextInput *input = find(known, argument->name);
    if (!input)
      return Error{fmt::format(
          "the input '{}' cannot be made from text: only {} can{}", argument->name, names(known),
          pairs ? " with the pairs of sentences that the others ask for" : "")};
    std::vector<int64_t> own = globalShape(argument->layout);
    size_t shared = std::min(own.size(), shape.size());
    if (argument->layout.dtype != input->type || own.size() != input->dims ||
        !std::equal(own.begin(), own.begin() + static_cast<ptrdiff_t>(shared), shape.begin()))
      return Error{fmt::format("the input '{}' is {} {}; from text comes {} {}{}", argument->name,
                               name(argument->layout.dtype), shapeText(own), name(input->type),
                               input->dims == 2 ? "[batch, seq]" : "[batch]",
                               shape.empty() ? "" : ", with the sizes of the other inputs")};
    if (own.size() > shape.size())
      shape = own;
    source.takes.insert(argument->name);
  }
  if (shape.size() < 2)
    return Error{"the function takes no tokens: there is nothing that text could be for"};
  source.rows = shape[0];
  source.seq = shape[1];
  auto opened = [&](auto data) -> Status {
    if (!data)
      return data.error();
    source.data = std::move(*data);
    return {};
  };
  Status status = pairs ? opened(SentencePairs::open(path, source.seq, seed))
                        : opened(TextData::open(path, source.seq, seed));
  if (!status)
    return status.error();
  return source;
}

Inputs TextSource::step(uint32_t step) const {
  Inputs all;
  if (const auto *pairs = std::get_if<SentencePairs>(&data)) {
    PairBatch batch = pairs->batch(step, rows);
    all = {{"tokens", std::move(batch.tokens)},
           {"kind", std::move(batch.kind)},
           {"valid", std::move(batch.valid)},
           {"labels", std::move(batch.labels)},
           {"next", std::move(batch.next)}};
  } else if (const auto *text = std::get_if<TextData>(&data)) {
    TextBatch batch = text->batch(step, rows);
    all = {{"tokens", std::move(batch.tokens)},
           {"labels", std::move(batch.labels)},
           {"pos", std::move(batch.pos)}};
  }
  std::erase_if(all, [&](const auto &input) { return !takes.count(input.first); });
  return all;
}

int64_t TextSource::size() const {
  if (const auto *pairs = std::get_if<SentencePairs>(&data))
    return pairs->size();
  const auto *text = std::get_if<TextData>(&data);
  return text ? text->size() : 0;
}

Error TextSource::explain(Error error) const {
  bool ids =
      error.message.find("input 'tokens' at") == 0 || error.message.find("input 'labels' at") == 0;
  bool pairs = std::holds_alternative<SentencePairs>(data);
  int64_t entries = pairs ? SentencePairs::vocabulary : 256;
  if (error.fault == Fault::User && ids)
    error.message += fmt::format("\n  hint: tokens of the tokenizer bytes are 0 to 255{}: the "
                                 "model's vocabulary must have {} entries (`--set vocab={}`)",
                                 pairs ? ", and four special ones" : "", entries, entries);
  return error;
}

} // namespace cleave::tool
