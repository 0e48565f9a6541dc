//===- Format.cpp - executables in files ----------------------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "runtime/executable/Format.h"

#include "runtime/core/AtomicFile.h"

#include <array>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace cleave {

using Json = nlohmann::json;

static constexpr std::string_view magic = "CLEAVEX\n";
static constexpr size_t headerBytes = 40;
static constexpr size_t objectAlignment = 64;
static constexpr int deepest = 16; ///< nesting of a manifest; ours has 6

static uint64_t hash(uint64_t state, std::string_view bytes) {
  for (char c : bytes)
    state = (state ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return state;
}
static uint64_t checksum(std::string_view file) {
  return hash(hash(14695981039346656037u, file.substr(8, 24)), file.substr(headerBytes));
}

template <typename T> static void put(std::string &bytes, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes[at + i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}
template <typename T> static T get(std::string_view bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return static_cast<T>(value);
}

//===----------------------------------------------------------------------===//
// Names of enumerations
//===----------------------------------------------------------------------===//

static constexpr std::array<std::string_view, 6> stepKinds = {
    "gemm", "attention", "elementwise", "optimizer", "collective", "copy"};
static constexpr std::array<std::string_view, 4> collectiveKinds = {"all_reduce", "all_gather",
                                                                    "reduce_scatter", "all_to_all"};
static constexpr std::array<std::string_view, 3> gemmSums = {"none", "a", "b"};
static constexpr std::array<std::string_view, 3> reductions = {"sum", "max", "min"};
static constexpr std::array<std::string_view, 3> bufferKinds = {"arena", "argument", "result"};
static constexpr std::array<std::string_view, 4> roles = {"param", "state", "input", "scalar"};
static constexpr std::array<std::string_view, 3> scalarKinds = {"constant", "offset", "extent"};

template <typename Enum, size_t n>
static std::string text(const std::array<std::string_view, n> &names, Enum value) {
  return std::string(names[static_cast<size_t>(value)]);
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static Json toJson(const std::vector<SubAxis> &axes) {
  Json out = Json::array();
  for (const SubAxis &a : axes)
    out.push_back({a.axis, a.pre, a.size});
  return out;
}

static Json toJson(const TensorLayout &layout) {
  Json dims = Json::array();
  for (const DimLayout &d : layout.dims)
    dims.push_back({d.name, d.size, toJson(d.axes)});
  return {{"dtype", std::string(name(layout.dtype))}, {"dims", std::move(dims)}};
}

static Json toJson(const RankScalar &s) {
  if (s.kind == RankScalar::Kind::Constant)
    return s.value;
  return Json::array({text(scalarKinds, s.kind), s.size, s.block, toJson(s.axes), s.parts, s.part});
}

static Json toJson(const std::vector<RankScalar> &scalars) {
  Json out = Json::array();
  for (const RankScalar &s : scalars)
    out.push_back(toJson(s));
  return out;
}

static Json toJson(const BufferRef &ref) { return Json::array({ref.buffer, ref.offset}); }

static Json toJson(const std::vector<BufferRef> &refs) {
  Json out = Json::array();
  for (const BufferRef &r : refs)
    out.push_back(toJson(r));
  return out;
}

static Json toJson(const KernelStep &s) {
  return {{"op", "kernel"},
          {"symbol", s.symbol},
          {"buffers", toJson(s.buffers)},
          {"scalars", toJson(s.scalars)},
          {"extent", s.extent},
          {"grain", s.grain}};
}

static Json toJson(const GemmStep &s) {
  Json out = {{"op", "gemm"},
              {"dtype", std::string(name(s.dtype))},
              {"trans", {s.transA, s.transB}},
              {"accumulate", s.accumulate},
              {"size", {s.batch, s.m, s.n, s.k}},
              {"ld", {s.lda, s.ldb, s.ldc}},
              {"stride", {s.strideA, s.strideB, s.strideC}},
              {"a", toJson(s.a)},
              {"b", toJson(s.b)},
              {"c", toJson(s.c)}};
  if (!s.epilogue.empty()) {
    out["epilogue"] = s.epilogue;
    out["buffers"] = toJson(s.epilogueBuffers);
    out["scalars"] = toJson(s.epilogueScalars);
  }
  if (s.sums != GemmStep::Sums::None) {
    out["sums"] = text(gemmSums, s.sums);
    out["sums_to"] = toJson(s.sumsTo);
  }
  if (s.sameA)
    out["same_a"] = true;
  return out;
}

static Json toJson(const CopyStep &s) {
  return {{"op", "copy"}, {"from", toJson(s.from)}, {"to", toJson(s.to)}, {"bytes", s.bytes}};
}

static Json toJson(const FillStep &s) {
  return {{"op", "fill"}, {"to", toJson(s.to)}, {"bytes", s.bytes}};
}

static Json toJson(const CollectiveStep &s) {
  Json out = {{"op", text(collectiveKinds, s.kind)},
              {"reduction", text(reductions, s.reduction)},
              {"dtype", std::string(name(s.dtype))},
              {"axes", toJson(s.axes)},
              {"shape", {s.outer, s.inDim, s.outDim, s.inner}},
              {"in", toJson(s.in)},
              {"out", toJson(s.out)},
              {"site", s.site}};
  if (s.begun)
    out["begun"] = true;
  if (s.kind == CollectiveStep::Kind::AllToAll) {
    out["split"] = {s.middle, s.inDim2, s.outDim2};
    out["dim_first"] = s.dimFirst;
  }
  return out;
}

static Json toJson(const AwaitStep &s) { return {{"op", "await"}, {"step", s.step}}; }

static Json toJson(const Program &p) {
  Json arguments = Json::array(), results = Json::array(), buffers = Json::array(),
       steps = Json::array(), sites = Json::array();
  for (const Argument &a : p.arguments) {
    Json out = {{"role", text(roles, a.role)}, {"name", a.name}, {"layout", toJson(a.layout)},
                {"donated_to", a.donatedTo},   {"init", a.init}, {"local_bytes", a.localBytes}};
    if (a.offloaded)
      out["offloaded"] = true;
    if (a.rangeEnd >= 0)
      out["range"] = {{"end", a.rangeEnd}, {"what", a.rangeWhat}};
    if (a.hasIgnore)
      out["ignore"] = a.ignore;
    arguments.push_back(std::move(out));
  }
  for (const ProgramResult &r : p.results)
    results.push_back({{"name", r.name}, {"layout", toJson(r.layout)}, {"alias_of", r.aliasOf}});
  for (const Buffer &b : p.buffers)
    buffers.push_back({text(bufferKinds, b.kind), b.bytes, b.offset, b.index});
  for (const Step &s : p.steps) {
    Json out = std::visit([](const auto &action) { return toJson(action); }, s.action);
    out["kind"] = text(stepKinds, s.kind);
    out["at"] = s.location;
    out["label"] = s.label;
    out["work"] = {s.bytes, s.flops};
    if (s.functions != FunctionCounts())
      out["functions"] = s.functions;
    if (const AttentionShape &a = s.attention; a.heads)
      out["attention"] = {{"heads", a.heads}, {"queries", a.queries}, {"keys", a.keys},
                          {"depth", a.depth}, {"causal", a.causal},   {"gradient", a.gradient}};
    steps.push_back(std::move(out));
  }
  Json labels = Json::array();
  for (const StepLabel &l : p.labels)
    labels.push_back({l.ops, l.source});
  for (const CollectiveSite &s : p.collectiveSites) {
    Json tensors = Json::array();
    for (const CollectiveSite::Tensor &t : s.tensors)
      tensors.push_back({t.dims, t.elements, t.param});
    sites.push_back({{"kind", s.kind},
                     {"axes", s.axes},
                     {"rule", s.rule},
                     {"location", s.location},
                     {"phase", s.phase},
                     {"payload_bytes", s.payloadBytes},
                     {"ring_bytes", s.ringBytes},
                     {"executions", s.executions},
                     {"moves", s.moves},
                     {"tensors", tensors},
                     {"layers", s.layers}});
  }
  return {{"name", p.name},
          {"dims", p.dims},
          {"arguments", arguments},
          {"results", results},
          {"buffers", buffers},
          {"steps", steps},
          {"arena_bytes", p.arenaBytes},
          {"training", p.training},
          {"locations", p.locations},
          {"labels", labels},
          {"collective_sites", sites}};
}

Result<std::string> serialise(const Executable &e) {
  Json mesh = Json::array(), programs = Json::array(), objects = Json::array();
  for (const MeshAxis &a : e.mesh)
    mesh.push_back({a.name, a.size});
  for (const Program &p : e.programs)
    programs.push_back(toJson(p));
  for (const std::string &object : e.objects)
    objects.push_back(object.size());
  Json manifest = {{"model", e.model},
                   {"plan", e.plan},
                   {"settings", e.settings},
                   {"mesh", mesh},
                   {"rank_program", e.rankProgram},
                   {"programs", programs},
                   {"objects", objects},
                   {"cpu_features", e.cpuFeatures}};
  std::string json;
  try {
    json = manifest.dump();
  } catch (const Json::exception &problem) {
    return Error{fmt::format("cannot write the executable: {}", problem.what())};
  }
  std::string bytes(headerBytes, '\0');
  bytes.replace(0, magic.size(), magic);
  bytes += json;
  for (const std::string &object : e.objects) {
    bytes.resize((bytes.size() + objectAlignment - 1) / objectAlignment * objectAlignment);
    bytes += object;
  }
  put(bytes, 8, static_cast<uint32_t>(e.version));
  put(bytes, 16, static_cast<uint64_t>(bytes.size()));
  put(bytes, 24, static_cast<uint64_t>(json.size()));
  put(bytes, 32, checksum(bytes));
  return bytes;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {
/// Thrown inside this file only.
struct Malformed {
  std::string what;
};

/// A manifest's node that knows its own place, for messages.
class Node {
public:
  Node(const Json &json, std::string path) : json(json), path(std::move(path)) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw Malformed{fmt::format("{}: expected {}", path, expected)};
  }
  Node operator[](const char *key) const {
    if (!json.is_object())
      fail("an object");
    auto found = json.find(key);
    if (found == json.end())
      throw Malformed{fmt::format("{}: '{}' is missing", path, key)};
    return {*found, path + "." + key};
  }
  bool has(const char *key) const { return json.is_object() && json.contains(key); }
  Node at(size_t index) const {
    if (!json.is_array() || index >= json.size())
      fail(fmt::format("an array with at least {} entries", index + 1));
    return {json[index], fmt::format("{}[{}]", path, index)};
  }
  size_t size() const {
    if (!json.is_array())
      fail("an array");
    return json.size();
  }
  bool isArray() const { return json.is_array(); }
  int64_t integer() const {
    if (!json.is_number_integer() ||
        (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}))
      fail("an integer");
    return json.get<int64_t>();
  }
  int32_t small() const {
    int64_t value = integer();
    if (value < INT32_MIN || value > INT32_MAX)
      fail("a 32-bit integer");
    return static_cast<int32_t>(value);
  }
  bool boolean() const {
    if (!json.is_boolean())
      fail("true or false");
    return json.get<bool>();
  }
  std::string string() const {
    if (!json.is_string())
      fail("a string");
    return json.get<std::string>();
  }
  template <typename Enum, size_t n>
  Enum oneOf(const std::array<std::string_view, n> &names) const {
    std::string word = string();
    for (size_t i = 0; i < n; ++i)
      if (names[i] == word)
        return static_cast<Enum>(i);
    fail(fmt::format("one of {}", fmt::join(names, ", ")));
  }
  DType dtype() const {
    if (auto type = parseDType(string()))
      return *type;
    fail("an element type");
  }
  template <typename Read> auto list(Read &&read) const {
    std::vector<decltype(read(std::declval<Node>()))> items;
    size_t n = size();
    items.reserve(n);
    for (size_t i = 0; i < n; ++i)
      items.push_back(read(at(i)));
    return items;
  }
  template <typename Read> auto map(Read &&read) const {
    if (!json.is_object())
      fail("an object");
    std::map<std::string, decltype(read(std::declval<Node>()))> items;
    for (auto &[key, value] : json.items())
      items.emplace(key, read(Node(value, path + "." + key)));
    return items;
  }

private:
  const Json &json;
  std::string path;
};
} // namespace

static std::vector<SubAxis> readAxes(const Node &node) {
  return node.list(
      [](const Node &n) { return SubAxis{n.at(0).small(), n.at(1).integer(), n.at(2).integer()}; });
}

static TensorLayout readLayout(const Node &node) {
  return {node["dtype"].dtype(), node["dims"].list([](const Node &n) {
            return DimLayout{n.at(0).string(), n.at(1).integer(), readAxes(n.at(2))};
          })};
}

static std::vector<RankScalar> readScalars(const Node &node) {
  return node.list([](const Node &n) {
    RankScalar s;
    if (!n.isArray()) {
      s.value = n.integer();
      return s;
    }
    s.kind = n.at(0).oneOf<RankScalar::Kind>(scalarKinds);
    s.size = n.at(1).integer();
    s.block = n.at(2).integer();
    s.axes = readAxes(n.at(3));
    s.parts = n.at(4).integer();
    s.part = n.at(5).integer();
    return s;
  });
}

static BufferRef readRef(const Node &n) { return {n.at(0).small(), n.at(1).integer()}; }
static std::vector<BufferRef> readRefs(const Node &node) { return node.list(readRef); }

static StepAction readAction(const Node &n) {
  std::string op = n["op"].string();
  if (op == "kernel")
    return KernelStep{n["symbol"].string(), readRefs(n["buffers"]), readScalars(n["scalars"]),
                      n["extent"].integer(), n["grain"].integer()};
  if (op == "gemm") {
    GemmStep s;
    Node size = n["size"], ld = n["ld"], stride = n["stride"];
    s.dtype = n["dtype"].dtype();
    s.transA = n["trans"].at(0).boolean();
    s.transB = n["trans"].at(1).boolean();
    s.accumulate = n["accumulate"].boolean();
    s.batch = size.at(0).integer(), s.m = size.at(1).integer();
    s.n = size.at(2).integer(), s.k = size.at(3).integer();
    s.lda = ld.at(0).integer(), s.ldb = ld.at(1).integer(), s.ldc = ld.at(2).integer();
    s.strideA = stride.at(0).integer(), s.strideB = stride.at(1).integer();
    s.strideC = stride.at(2).integer();
    s.a = readRef(n["a"]), s.b = readRef(n["b"]), s.c = readRef(n["c"]);
    if (n.has("epilogue")) {
      s.epilogue = n["epilogue"].string();
      s.epilogueBuffers = readRefs(n["buffers"]);
      s.epilogueScalars = readScalars(n["scalars"]);
    }
    if (n.has("sums")) {
      s.sums = n["sums"].oneOf<GemmStep::Sums>(gemmSums);
      s.sumsTo = readRef(n["sums_to"]);
    }
    s.sameA = n.has("same_a") && n["same_a"].boolean();
    return s;
  }
  if (op == "copy")
    return CopyStep{readRef(n["from"]), readRef(n["to"]), n["bytes"].integer()};
  if (op == "fill")
    return FillStep{readRef(n["to"]), n["bytes"].integer()};
  if (op == "await")
    return AwaitStep{n["step"].small()};
  CollectiveStep s = CollectiveStep();
  s.kind = n["op"].oneOf<CollectiveStep::Kind>(collectiveKinds);
  s.reduction = n["reduction"].oneOf<CollectiveStep::Reduction>(reductions);
  s.dtype = n["dtype"].dtype();
  s.axes = readAxes(n["axes"]);
  Node shape = n["shape"];
  s.outer = shape.at(0).integer(), s.inDim = shape.at(1).integer();
  s.outDim = shape.at(2).integer(), s.inner = shape.at(3).integer();
  s.in = readRef(n["in"]), s.out = readRef(n["out"]);
  s.site = n["site"].small();
  s.begun = n.has("begun") && n["begun"].boolean();
  if (s.kind == CollectiveStep::Kind::AllToAll) {
    Node split = n["split"];
    s.middle = split.at(0).integer(), s.inDim2 = split.at(1).integer();
    s.outDim2 = split.at(2).integer();
    s.dimFirst = n["dim_first"].boolean();
  }
  return s;
}

static Argument readArgument(const Node &n) {
  Argument a;
  a.role = n["role"].oneOf<Argument::Role>(roles);
  a.name = n["name"].string();
  a.layout = readLayout(n["layout"]);
  a.donatedTo = n["donated_to"].small();
  a.init = n["init"].string();
  a.localBytes = n["local_bytes"].integer();
  a.offloaded = n.has("offloaded") && n["offloaded"].boolean();
  if (n.has("range")) {
    a.rangeEnd = n["range"]["end"].integer();
    a.rangeWhat = n["range"]["what"].string();
  }
  if (n.has("ignore")) {
    a.hasIgnore = true;
    a.ignore = n["ignore"].integer();
  }
  return a;
}

static Program readProgram(const Node &n) {
  auto string = [](const Node &node) { return node.string(); };
  Program p;
  p.name = n["name"].string();
  p.dims = n["dims"].map([](const Node &node) { return node.integer(); });
  p.arguments = n["arguments"].list(readArgument);
  p.results = n["results"].list([](const Node &r) {
    return ProgramResult{r["name"].string(), readLayout(r["layout"]), r["alias_of"].small()};
  });
  p.buffers = n["buffers"].list([](const Node &b) {
    return Buffer{b.at(0).oneOf<Buffer::Kind>(bufferKinds), b.at(1).integer(), b.at(2).integer(),
                  b.at(3).small()};
  });
  p.steps = n["steps"].list([](const Node &s) {
    FunctionCounts functions = {};
    for (size_t f = 0; s.has("functions") && f < functions.size(); ++f)
      functions[f] = s["functions"].at(f).integer();
    AttentionShape attention;
    if (s.has("attention")) {
      Node a = s["attention"];
      attention = {a["heads"].integer(), a["queries"].integer(), a["keys"].integer(),
                   a["depth"].integer(), a["causal"].boolean(),  a["gradient"].boolean()};
    }
    return Step{readAction(s),
                s["kind"].oneOf<StepKind>(stepKinds),
                s["at"].small(),
                s["label"].small(),
                s["work"].at(0).integer(),
                s["work"].at(1).integer(),
                functions,
                attention};
  });
  p.arenaBytes = n["arena_bytes"].integer();
  p.training = n["training"].boolean();
  p.locations = n["locations"].list(string);
  p.labels =
      n["labels"].list([](const Node &l) { return StepLabel{l.at(0).string(), l.at(1).string()}; });
  auto tensor = [](const Node &t) {
    return CollectiveSite::Tensor{t.at(0).string(), t.at(1).integer(), t.at(2).string()};
  };
  p.collectiveSites = n["collective_sites"].list([&](const Node &s) {
    return CollectiveSite{
        s["kind"].string(),        s["axes"].string(),        s["rule"].string(),
        s["location"].string(),    s["phase"].string(),       s["payload_bytes"].integer(),
        s["ring_bytes"].integer(), s["executions"].integer(), s["moves"].string(),
        s["tensors"].list(tensor), s["layers"].integer()};
  });
  return p;
}

static Executable readManifest(const Json &json, std::string_view file, size_t objectsAt) {
  Node n(json, "manifest");
  auto string = [](const Node &node) { return node.string(); };
  Executable e;
  e.model = n["model"].string();
  e.plan = n["plan"].string();
  e.settings = n["settings"].map(string);
  e.mesh =
      n["mesh"].list([](const Node &a) { return MeshAxis{a.at(0).string(), a.at(1).integer()}; });
  e.rankProgram = n["rank_program"].list([](const Node &r) { return r.small(); });
  e.programs = n["programs"].list(readProgram);
  e.cpuFeatures = n["cpu_features"].list(string);
  size_t at = objectsAt;
  auto sizes = n["objects"].list([](const Node &s) { return s.integer(); });
  for (int64_t size : sizes) {
    at = (at + objectAlignment - 1) / objectAlignment * objectAlignment;
    if (size < 0 || at > file.size() || static_cast<uint64_t>(size) > file.size() - at)
      throw Malformed{fmt::format("an object of {} bytes at {} passes the end", size, at)};
    e.objects.emplace_back(file.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  if (at != file.size())
    throw Malformed{fmt::format("{} bytes follow the last object", file.size() - at)};
  return e;
}

Result<Executable> deserialise(std::string_view bytes, std::string_view name) {
  auto refuse = [&](std::string_view why) {
    return Error{fmt::format("'{}' cannot be run: {}", name, why)};
  };
  if (bytes.substr(0, magic.size()) != magic)
    return refuse("it is not a Cleave executable");
  if (bytes.size() < headerBytes)
    return refuse(fmt::format("it is cut short: {} bytes, less than its header", bytes.size()));
  auto version = get<uint32_t>(bytes, 8);
  if (version != static_cast<uint32_t>(Executable::currentVersion))
    return refuse(fmt::format(
        "it has format version {}, this program reads version {}; compile the model again", version,
        Executable::currentVersion));
  auto length = get<uint64_t>(bytes, 16), manifestBytes = get<uint64_t>(bytes, 24);
  if (length != bytes.size())
    return refuse(
        fmt::format("it is damaged: it has {} bytes and should have {}", bytes.size(), length));
  if (get<uint64_t>(bytes, 32) != checksum(bytes))
    return refuse("it is damaged: its checksum is wrong");
  if (manifestBytes > bytes.size() - headerBytes)
    return refuse("it is damaged: its manifest passes the end");
  try {
    auto guard = [](int depth, Json::parse_event_t, Json &) {
      if (depth > deepest)
        throw Malformed{"the manifest is nested too deeply"};
      return true;
    };
    Json json = Json::parse(bytes.substr(headerBytes, manifestBytes), guard);
    Executable executable = readManifest(json, bytes, headerBytes + manifestBytes);
    executable.version = static_cast<int32_t>(version);
    if (auto status = verify(executable); !status)
      return refuse(status.error().message);
    return executable;
  } catch (const Malformed &problem) {
    return refuse(problem.what);
  } catch (const std::exception &problem) {
    return refuse(problem.what());
  }
}

Status writeExecutable(const Executable &executable, const std::string &path) {
  if (auto status = verify(executable); !status)
    return Error{status.error().message, Fault::Internal};
  auto bytes = serialise(executable);
  if (!bytes)
    return bytes.error();
  return writeFileAtomically(path, *bytes);
}

Result<Executable> readExecutable(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.error();
  return deserialise(file->view(), path);
}

bool looksLikeExecutable(const std::string &path) {
  auto file = MappedFile::open(path);
  return file && file->view().substr(0, magic.size()) == magic;
}

} // namespace cleave
