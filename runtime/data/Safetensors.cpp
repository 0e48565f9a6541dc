//===- Safetensors.cpp - tensors in files ---------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/data/Safetensors.h"

#include "runtime/core/NearMatch.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

namespace cleave {

using Json = nlohmann::json;

/// As the reference implementation.
static constexpr uint64_t longestHeader = 100'000'000;
static constexpr int deepest = 4; ///< {"name": {"shape": [1]}} has 3

namespace {
struct FileType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> ours;
};
} // namespace

static constexpr std::array<FileType, 16> fileTypes = {{
    {"F64", 8, DType::F64},
    {"F32", 4, DType::F32},
    {"F16", 2, DType::F16},
    {"BF16", 2, DType::BF16},
    {"I64", 8, DType::I64},
    {"I32", 4, DType::I32},
    {"BOOL", 1, DType::I1},
    {"U8", 1, DType::I1},
    {"I8", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"U32", 4, {}},
    {"U64", 8, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"C64", 8, {}},
}};

static const FileType *findType(std::string_view name) {
  auto found = std::find_if(fileTypes.begin(), fileTypes.end(),
                            [&](const FileType &t) { return t.name == name; });
  return found == fileTypes.end() ? nullptr : found;
}

std::string_view safetensorsName(DType type) {
  return std::find_if(fileTypes.begin(), fileTypes.end(),
                      [&](const FileType &t) { return t.ours == type; })
      ->name;
}

namespace {
/// Thrown inside this file only.
struct Malformed {
  std::string what;
};

/// A JSON object's keys as they are parsed: nlohmann keeps the last of two.
class KeyGuard {
public:
  bool operator()(int depth, Json::parse_event_t event, Json &value) {
    if (depth > deepest)
      throw Malformed{"the header is nested too deeply"};
    switch (event) {
    case Json::parse_event_t::object_start:
      open.emplace_back();
      break;
    case Json::parse_event_t::object_end:
      open.pop_back();
      break;
    case Json::parse_event_t::key: {
      const auto &key = value.get_ref<const std::string &>();
      if (!open.back().insert(key).second)
        throw Malformed{fmt::format("'{}' stands twice in the header", key)};
      break;
    }
    default:
      break;
    }
    return true;
  }

private:
  std::vector<std::set<std::string>> open;
};
} // namespace

static int64_t readCount(const Json &value, std::string_view tensor, std::string_view what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX})
    throw Malformed{fmt::format("tensor '{}': {} has an entry that is not a count: {}", tensor,
                                what, value.dump(-1, ' ', true).substr(0, 40))};
  return value.get<int64_t>();
}

static SafetensorsFile::Entry readEntry(std::string_view name, const Json &json) {
  auto refuse = [&](std::string_view why) -> Malformed {
    return {fmt::format("tensor '{}': {}", name, why)};
  };
  if (!json.is_object())
    throw refuse("its description is not an object");
  for (const char *key : {"dtype", "shape", "data_offsets"})
    if (!json.contains(key))
      throw refuse(fmt::format("'{}' is missing", key));
  const Json &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  if (!dtype.is_string())
    throw refuse("dtype is not a string");
  SafetensorsFile::Entry entry;
  entry.dtype = dtype.get<std::string>();
  const FileType *type = findType(entry.dtype);
  if (!type)
    throw refuse(fmt::format("unknown dtype '{}'", entry.dtype.substr(0, 40)));
  if (!shape.is_array())
    throw refuse("shape is not an array");
  int64_t bytes = type->bytes;
  bool overflow = false, zero = false;
  for (const Json &size : shape) {
    entry.shape.push_back(readCount(size, name, "shape"));
    zero |= entry.shape.back() == 0;
    overflow |= __builtin_mul_overflow(bytes, entry.shape.back(), &bytes);
  }
  if (overflow && !zero)
    throw refuse("its shape is too large");
  if (zero)
    bytes = 0;
  if (!offsets.is_array() || offsets.size() != 2)
    throw refuse("data_offsets is not a pair");
  entry.begin = readCount(offsets[0], name, "data_offsets");
  entry.end = readCount(offsets[1], name, "data_offsets");
  if (entry.end < entry.begin)
    throw refuse(fmt::format("data_offsets [{}, {}] run backwards", entry.begin, entry.end));
  if (entry.end - entry.begin != bytes)
    throw refuse(fmt::format("{} {} needs {} bytes, data_offsets [{}, {}] hold {}", entry.dtype,
                             shapeText(entry.shape), bytes, entry.begin, entry.end,
                             entry.end - entry.begin));
  return entry;
}

Result<std::map<std::string, SafetensorsFile::Entry>>
SafetensorsFile::parseHeader(std::string_view bytes, std::string_view name, int64_t &dataAt,
                             std::map<std::string, std::string> &metadata) {
  auto refuse = [&](std::string_view why) {
    return Error{fmt::format("'{}' is not a valid safetensors file: {}", name, why)};
  };
  if (bytes.size() < 8)
    return refuse(fmt::format("it has {} bytes, less than the length of its header", bytes.size()));
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i)
    length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (length > longestHeader)
    return refuse(fmt::format("a header of {} bytes; the most is {}", length, longestHeader));
  if (length > bytes.size() - 8)
    return refuse(fmt::format("a header of {} bytes in a file of {}", length, bytes.size()));
  std::string_view header = bytes.substr(8, length);
  if (header.empty() || header.front() != '{')
    return refuse("its header is not a JSON object");
  dataAt = static_cast<int64_t>(8 + length);
  std::map<std::string, Entry> entries;
  try {
    Json json = Json::parse(header, KeyGuard());
    for (const auto &[key, value] : json.items()) {
      if (key != "__metadata__") {
        entries.emplace(key, readEntry(key, value));
        continue;
      }
      if (!value.is_object())
        return refuse("'__metadata__' is not an object");
      for (const auto &[note, text] : value.items()) {
        if (!text.is_string())
          return refuse(fmt::format("'__metadata__': '{}' is not a string", note));
        metadata[note] = text.get<std::string>();
      }
    }
  } catch (const Malformed &problem) {
    return refuse(problem.what);
  } catch (const std::exception &problem) {
    return refuse(problem.what());
  }
  // Sorted by place, each tensor begins where the one before ends.
  std::vector<std::pair<std::string_view, const Entry *>> order;
  for (const auto &[key, entry] : entries)
    order.emplace_back(key, &entry);
  std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
    return std::tuple(a.second->begin, a.second->end, a.first) <
           std::tuple(b.second->begin, b.second->end, b.first);
  });
  int64_t at = 0, data = static_cast<int64_t>(bytes.size()) - dataAt;
  std::string_view before;
  for (const auto &[key, entry] : order) {
    if (entry->begin < at)
      return refuse(fmt::format("tensors '{}' and '{}' overlap", before, key));
    if (entry->begin > at)
      return refuse(
          fmt::format("{} bytes before tensor '{}' belong to no tensor", entry->begin - at, key));
    if (entry->end > data)
      return refuse(fmt::format("tensor '{}' ends at byte {}, the data has {}: the file is cut "
                                "short",
                                key, entry->end, data));
    at = entry->end;
    before = key;
  }
  if (at != data)
    return refuse(fmt::format("{} bytes at its end belong to no tensor", data - at));
  return entries;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string &path) {
  auto mapping = MappedFile::open(path);
  if (!mapping)
    return mapping.error();
  SafetensorsFile file(std::move(*mapping));
  file.file = path;
  auto entries = parseHeader(file.mapping.view(), path, file.dataAt, file.notes);
  if (!entries)
    return entries.error();
  file.tensors = std::move(*entries);
  return file;
}

Result<TensorView> SafetensorsFile::view(std::string_view name) const {
  auto found = tensors.find(std::string(name));
  if (found == tensors.end()) {
    std::vector<std::string_view> known;
    for (const auto &[key, unused] : tensors)
      known.push_back(key);
    return Error{fmt::format("'{}' has no tensor '{}'{}", file, name, didYouMean(name, known))};
  }
  const Entry &entry = found->second;
  auto type = findType(entry.dtype)->ours;
  if (!type)
    return Error{fmt::format("'{}': tensor '{}' is {}, a type that Cleave does not have", file,
                             name, entry.dtype)};
  return TensorView{*type, entry.shape, mapping.data() + dataAt + entry.begin};
}

Result<HostTensor> SafetensorsFile::read(std::string_view name) const {
  auto place = view(name);
  if (!place)
    return place.error();
  HostTensor tensor(place->dtype, place->shape);
  if (!tensor.data.empty())
    std::memcpy(tensor.data.data(), place->data, tensor.data.size());
  if (tensor.dtype == DType::I1)
    for (char &value : tensor.data)
      value = value != 0;
  return tensor;
}

Status writeSafetensors(const std::string &path, const std::vector<NamedTensor> &tensors,
                        const std::map<std::string, std::string> &metadata) {
  std::vector<const NamedTensor *> order;
  std::set<std::string_view> names;
  for (const NamedTensor &tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      return Error{fmt::format("cannot write '{}': the name '{}' stands twice or is reserved", path,
                               tensor.name)};
    order.push_back(&tensor);
  }
  // Wide types first: then each tensor is aligned to its own width.
  std::sort(order.begin(), order.end(), [](const NamedTensor *a, const NamedTensor *b) {
    int64_t x = byteSize(a->tensor.dtype), y = byteSize(b->tensor.dtype);
    return x != y ? x > y : a->name < b->name;
  });
  std::string header = "{";
  try {
    if (!metadata.empty())
      header += "\"__metadata__\":" + Json(metadata).dump();
    int64_t at = 0;
    for (const NamedTensor *t : order) {
      int64_t end = at + t->tensor.bytes();
      header +=
          fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                      header.size() > 1 ? "," : "", Json(t->name).dump(),
                      safetensorsName(t->tensor.dtype), fmt::join(t->tensor.shape, ","), at, end);
      at = end;
    }
  } catch (const std::exception &problem) {
    return Error{fmt::format("cannot write '{}': {}", path, problem.what())};
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > longestHeader)
    return Error{
        fmt::format("cannot write '{}': its header would have {} bytes", path, header.size())};
  auto file = AtomicFile::create(path);
  if (!file)
    return file.error();
  char length[8];
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(header.size() >> (8 * i));
  if (auto status = file->write(length, 8); !status)
    return status;
  if (auto status = file->write(header); !status)
    return status;
  for (const NamedTensor *t : order)
    if (auto status = file->write(t->tensor.data, t->tensor.bytes()); !status)
      return status;
  return file->commit();
}

} // namespace cleave
