//===- Dialect.cpp - attributes and types of the cleave dialect -----------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/Dialect.h"

#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace cleave;

#include "ir/CleaveDialect.cpp.inc"
#include "ir/CleaveEnums.cpp.inc"
#include "ir/CleaveInterfaces.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "ir/CleaveAttrs.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "ir/CleaveTypes.cpp.inc"

void CleaveDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "ir/CleaveAttrs.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "ir/CleaveTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/CleaveOps.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Text of names, axes, shardings
//===----------------------------------------------------------------------===//

static ParseResult parseName(AsmParser &parser, std::string &name) {
  if (succeeded(parser.parseOptionalKeywordOrString(&name)))
    return success();
  return parser.emitError(parser.getCurrentLocation(), "expected a name");
}

static void printName(AsmPrinter &printer, StringRef name) { printer.printKeywordOrString(name); }

static void printAxis(AsmPrinter &printer, AxisAttr axis) {
  printName(printer, axis.getName().getValue());
  if (axis.getSize())
    printer << ":(" << axis.getPre() << ")" << axis.getSize();
}

static ParseResult parseAxis(AsmParser &parser, Attribute &axis) {
  std::string name;
  int64_t pre = 1, size = 0;
  if (parseName(parser, name))
    return failure();
  if (succeeded(parser.parseOptionalColon())) {
    SMLoc loc = parser.getCurrentLocation();
    if (parser.parseLParen() || parser.parseInteger(pre) || parser.parseRParen() ||
        parser.parseInteger(size))
      return failure();
    if (pre < 1 || size < 1)
      return parser.emitError(loc, "a sub-axis is written axis:(major part)size with both at "
                                   "least 1, but these are ")
             << pre << " and " << size;
  }
  axis = AxisAttr::get(parser.getContext(), StringAttr::get(parser.getContext(), name), pre, size);
  return success();
}

static void printAxes(AsmPrinter &printer, ArrayAttr axes) {
  printer << "{";
  llvm::interleaveComma(axes, printer, [&](Attribute a) { printAxis(printer, cast<AxisAttr>(a)); });
  printer << "}";
}

static ParseResult parseAxes(AsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> list;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces,
                                     [&] { return parseAxis(parser, list.emplace_back()); }))
    return failure();
  axes = ArrayAttr::get(parser.getContext(), list);
  return success();
}

Attribute AxisAttr::parse(AsmParser &parser, Type) {
  Attribute axis;
  if (parser.parseLess() || parseAxis(parser, axis) || parser.parseGreater())
    return {};
  return axis;
}

void AxisAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printAxis(printer, *this);
  printer << ">";
}

//===----------------------------------------------------------------------===//
// Mesh
//===----------------------------------------------------------------------===//

int64_t MeshAttr::getRanks() const {
  int64_t ranks = 1;
  for (int64_t size : getSizes())
    ranks *= size;
  return ranks;
}

int64_t MeshAttr::sizeOf(StringRef axis) const {
  for (auto [name, size] : llvm::zip_equal(getNames(), getSizes()))
    if (name.getValue() == axis)
      return size;
  return 0;
}

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  auto parseOne = [&]() -> ParseResult {
    std::string name;
    if (parseName(parser, name) || parser.parseEqual() || parser.parseInteger(sizes.emplace_back()))
      return failure();
    names.push_back(StringAttr::get(parser.getContext(), name));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseOne))
    return {};
  return parser.getChecked<MeshAttr>(parser.getContext(), names, sizes);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleaveComma(llvm::zip_equal(getNames(), getSizes()), printer, [&](auto axis) {
    printName(printer, std::get<0>(axis).getValue());
    printer << "=" << std::get<1>(axis);
  });
  printer << ">";
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<StringAttr> names, ArrayRef<int64_t> sizes) {
  llvm::StringSet<> seen;
  int64_t ranks = 1;
  for (auto [name, size] : llvm::zip_equal(names, sizes)) {
    if (!seen.insert(name.getValue()).second)
      return emitError() << "mesh axis '" << name.getValue() << "' is there twice";
    if (size < 1 || size > 4096)
      return emitError() << "mesh axis '" << name.getValue() << "' has size " << size
                         << "; it must be from 1 to 4096";
    ranks *= size;
    if (ranks > 65536)
      return emitError() << "the mesh has more than 65536 ranks";
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Sharding and plan rules
//===----------------------------------------------------------------------===//

bool ShardingAttr::isReplicated() const {
  return getUnreduced().empty() && llvm::all_of(getDims(), [](ArrayAttr a) { return a.empty(); });
}

static ParseResult parseUnreduced(AsmParser &parser, Reduction &reduction, ArrayAttr &unreduced) {
  reduction = Reduction::Sum;
  unreduced = ArrayAttr::get(parser.getContext(), {});
  for (Reduction kind : {Reduction::Sum, Reduction::Max, Reduction::Min})
    if (succeeded(parser.parseOptionalKeyword(stringifyReduction(kind)))) {
      reduction = kind;
      return parseAxes(parser, unreduced);
    }
  return success();
}

static void printUnreduced(AsmPrinter &printer, ShardingAttr sharding) {
  if (sharding.getUnreduced().empty())
    return;
  printer << " " << stringifyReduction(sharding.getReduction()) << " ";
  printAxes(printer, sharding.getUnreduced());
}

Attribute ShardingAttr::parse(AsmParser &parser, Type) {
  SmallVector<ArrayAttr> dims;
  Reduction reduction;
  ArrayAttr unreduced;
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                     [&] { return parseAxes(parser, dims.emplace_back()); }) ||
      parseUnreduced(parser, reduction, unreduced) || parser.parseGreater())
    return {};
  return ShardingAttr::get(parser.getContext(), dims, reduction, unreduced);
}

void ShardingAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getDims(), printer, [&](ArrayAttr axes) { printAxes(printer, axes); });
  printer << "]";
  printUnreduced(printer, *this);
  printer << ">";
}

Attribute ShardRuleAttr::parse(AsmParser &parser, Type) {
  MLIRContext *context = parser.getContext();
  SmallVector<ArrayAttr> alternatives;
  SmallVector<StringAttr> axes;
  if (parser.parseLess())
    return {};
  do {
    SmallVector<Attribute> dims;
    do {
      SmallVector<Attribute> atoms;
      do {
        std::string name;
        if (parseName(parser, name))
          return {};
        atoms.push_back(StringAttr::get(context, name));
      } while (succeeded(parser.parseOptionalStar()));
      dims.push_back(ArrayAttr::get(context, atoms));
    } while (succeeded(parser.parseOptionalComma()));
    alternatives.push_back(ArrayAttr::get(context, dims));
  } while (succeeded(parser.parseOptionalKeyword("else")));
  if (parser.parseKeyword("by"))
    return {};
  do {
    std::string name;
    if (parseName(parser, name))
      return {};
    axes.push_back(StringAttr::get(context, name));
  } while (succeeded(parser.parseOptionalComma()));
  if (parser.parseGreater())
    return {};
  return ShardRuleAttr::get(context, alternatives, axes);
}

void ShardRuleAttr::print(AsmPrinter &printer) const {
  printer << "<";
  llvm::interleave(
      getAlternatives(), printer,
      [&](ArrayAttr dims) {
        llvm::interleaveComma(dims, printer, [&](Attribute dim) {
          llvm::interleave(
              cast<ArrayAttr>(dim), printer,
              [&](Attribute atom) { printName(printer, cast<StringAttr>(atom).getValue()); },
              " * ");
        });
      },
      " else ");
  printer << " by ";
  llvm::interleaveComma(getAxes(), printer,
                        [&](StringAttr axis) { printName(printer, axis.getValue()); });
  printer << ">";
}

LogicalResult ZeroAttr::verify(llvm::function_ref<InFlightDiagnostic()> error, int64_t level,
                               ArrayRef<StringAttr> axes, bool) {
  if (level < 1 || level > 3)
    return error() << "level " << level << " of ZeRO; there are 1, 2 and 3";
  if (axes.empty())
    return error() << "ZeRO over no axis";
  return success();
}

Attribute ZeroAttr::parse(AsmParser &parser, Type) {
  MLIRContext *context = parser.getContext();
  int64_t level = 0;
  SmallVector<StringAttr> axes;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseInteger(level) || parser.parseKeyword("over"))
    return {};
  do {
    std::string name;
    if (parseName(parser, name))
      return {};
    axes.push_back(StringAttr::get(context, name));
  } while (succeeded(parser.parseOptionalComma()));
  bool offload = succeeded(parser.parseOptionalKeyword("offload"));
  if (parser.parseGreater())
    return {};
  return ZeroAttr::getChecked([&] { return parser.emitError(loc); }, context, level, axes, offload);
}

void ZeroAttr::print(AsmPrinter &printer) const {
  printer << "<" << getLevel() << " over ";
  llvm::interleaveComma(getAxes(), printer,
                        [&](StringAttr axis) { printName(printer, axis.getValue()); });
  printer << (getOffload() ? " offload>" : ">");
}

//===----------------------------------------------------------------------===//
// The tensor type
//===----------------------------------------------------------------------===//

Type NamedTensorType::parse(AsmParser &parser) {
  MLIRContext *context = parser.getContext();
  Type element;
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  SmallVector<ArrayAttr> axes;
  if (parser.parseLess() || parser.parseType(element))
    return {};
  bool sharded = false;
  auto parseDim = [&]() -> ParseResult {
    std::string name;
    if (parseName(parser, name) || parser.parseEqual() || parser.parseInteger(sizes.emplace_back()))
      return failure();
    names.push_back(StringAttr::get(context, name));
    axes.push_back(ArrayAttr::get(context, {}));
    SmallVector<Attribute> list;
    if (parser.parseCommaSeparatedList(AsmParser::Delimiter::OptionalBraces,
                                       [&] { return parseAxis(parser, list.emplace_back()); }))
      return failure();
    if (!list.empty()) {
      axes.back() = ArrayAttr::get(context, list);
      sharded = true;
    }
    return success();
  };
  Reduction reduction;
  ArrayAttr unreduced;
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::OptionalSquare, parseDim) ||
      parseUnreduced(parser, reduction, unreduced))
    return {};
  sharded |= !unreduced.empty() || succeeded(parser.parseOptionalKeyword("replicated"));
  if (parser.parseGreater())
    return {};
  ShardingAttr sharding;
  if (sharded)
    sharding = ShardingAttr::get(context, axes, reduction, unreduced);
  return parser.getChecked<NamedTensorType>(context, element, names, sizes, sharding);
}

void NamedTensorType::print(AsmPrinter &printer) const {
  printer << "<" << getElementType();
  if (getRank()) {
    printer << " [";
    for (int64_t i = 0; i < getRank(); ++i) {
      if (i)
        printer << ", ";
      printName(printer, getNames()[i].getValue());
      printer << "=" << getSizes()[i];
      if (getSharding() && !getSharding().getDims()[i].empty()) {
        printer << " ";
        printAxes(printer, getSharding().getDims()[i]);
      }
    }
    printer << "]";
  }
  if (getSharding()) {
    if (getSharding().isReplicated())
      printer << " replicated";
    printUnreduced(printer, getSharding());
  }
  printer << ">";
}

LogicalResult NamedTensorType::verify(function_ref<InFlightDiagnostic()> emitError, Type element,
                                      ArrayRef<StringAttr> names, ArrayRef<int64_t> sizes,
                                      ShardingAttr sharding) {
  if (!element.isF32() && !element.isF64() && !element.isBF16() && !element.isF16() &&
      !element.isInteger(1) && !element.isInteger(32) && !element.isInteger(64))
    return emitError() << "element type " << element
                       << " is none of f32, f64, bf16, f16, i1, i32, i64";
  llvm::StringSet<> seen;
  int64_t elements = 1;
  for (auto [name, size] : llvm::zip_equal(names, sizes)) {
    if (!seen.insert(name.getValue()).second)
      return emitError() << "dim '" << name.getValue() << "' is there twice in one tensor";
    if (size < 0)
      return emitError() << "dim '" << name.getValue() << "' has size " << size;
    if (llvm::MulOverflow(elements, size, elements) || elements > (int64_t(1) << 48))
      return emitError() << "the tensor has more than 2^48 elements";
  }
  if (sharding && sharding.getDims().size() != names.size())
    return emitError() << "the sharding has " << sharding.getDims().size()
                       << " dims, the tensor has " << names.size();
  if (sharding) {
    llvm::StringSet<> used;
    auto use = [&](ArrayAttr axes) -> LogicalResult {
      for (Attribute a : axes) {
        std::string text;
        llvm::raw_string_ostream(text) << a;
        if (!used.insert(text).second)
          return emitError() << "one axis is used twice in a sharding: " << a;
      }
      return success();
    };
    for (ArrayAttr axes : sharding.getDims())
      if (failed(use(axes)))
        return failure();
    return use(sharding.getUnreduced());
  }
  return success();
}

int64_t NamedTensorType::getNumElements() const {
  int64_t n = 1;
  for (int64_t size : getSizes())
    n *= size;
  return n;
}

int64_t NamedTensorType::indexOf(StringRef name) const {
  for (int64_t i = 0; i < getRank(); ++i)
    if (getNames()[i].getValue() == name)
      return i;
  return -1;
}

int64_t NamedTensorType::sizeOf(StringRef name) const {
  int64_t i = indexOf(name);
  assert(i >= 0 && "the tensor lacks the dim");
  return getSizes()[i];
}

int64_t NamedTensorType::getElementBytes() const {
  unsigned bits = getElementType().getIntOrFloatBitWidth();
  return bits == 1 ? 1 : bits / 8;
}

NamedTensorType NamedTensorType::withElementType(Type type) const {
  return get(getContext(), type, getNames(), getSizes(), getSharding());
}

NamedTensorType NamedTensorType::withSharding(ShardingAttr sharding) const {
  return get(getContext(), getElementType(), getNames(), getSizes(), sharding);
}

NamedTensorType NamedTensorType::withoutDims(ArrayRef<StringRef> dropped) const {
  SmallVector<StringAttr> names;
  SmallVector<int64_t> sizes;
  for (auto [name, size] : llvm::zip_equal(getNames(), getSizes()))
    if (!llvm::is_contained(dropped, name.getValue())) {
      names.push_back(name);
      sizes.push_back(size);
    }
  return get(getContext(), getElementType(), names, sizes, {});
}

NamedTensorType NamedTensorType::withLeadingDim(StringRef name, int64_t size) const {
  SmallVector<StringAttr> names{StringAttr::get(getContext(), name)};
  SmallVector<int64_t> sizes{size};
  llvm::append_range(names, getNames());
  llvm::append_range(sizes, getSizes());
  return get(getContext(), getElementType(), names, sizes, {});
}

NamedTensorType NamedTensorType::withDim(int64_t index, StringRef name, int64_t size) const {
  SmallVector<StringAttr> names(getNames());
  SmallVector<int64_t> sizes(getSizes());
  if (!name.empty())
    names[index] = StringAttr::get(getContext(), name);
  sizes[index] = size;
  return get(getContext(), getElementType(), names, sizes, {});
}
InFlightDiagnostic cleave::emitUserError(Location loc) {
  InFlightDiagnostic diagnostic = emitError(loc);
  diagnostic.getUnderlyingDiagnostic()->getMetadata().push_back(
      DiagnosticArgument(StringAttr::get(loc.getContext(), "user")));
  return diagnostic;
}

bool cleave::isUserError(Diagnostic &diagnostic) {
  return llvm::any_of(diagnostic.getMetadata(), [](const DiagnosticArgument &argument) {
    if (argument.getKind() != DiagnosticArgument::DiagnosticArgumentKind::Attribute)
      return false;
    auto text = dyn_cast<StringAttr>(argument.getAsAttribute());
    return text && text == "user";
  });
}
