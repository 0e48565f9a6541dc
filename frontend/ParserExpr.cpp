//===- ParserExpr.cpp - expressions and types -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/ParserBase.h"

namespace cleave {

ExprPtr ParserBase::make(ExprKind kind, SourceRange range) {
  auto e = std::make_shared<Expr>();
  e->kind = kind;
  e->range = e->opRange = range;
  return e;
}
/// Adds a child; long chains make deep trees too, which are refused.
bool ParserBase::adopt(Expr &parent, ExprPtr child) {
  parent.depth = std::max(parent.depth, child->depth + 1);
  parent.range = join(parent.range, child->range);
  parent.children.push_back(std::move(child));
  if (parent.depth <= maxDepth)
    return true;
  diagnostics.error(parent.opRange,
                    "the expression is nested more than " + std::to_string(maxDepth) + " deep",
                    "name parts of it: `part_of_it = ...`");
  return false;
}

ExprPtr ParserBase::expression() {
  if (tooDeep())
    return nullptr;
  Deeper deeper(depth);
  ExprPtr left = binary(0);
  while (left && current().is("as")) {
    auto e = make(ExprKind::As, current().range);
    advance();
    if (!adopt(*e, std::move(left)))
      return nullptr;
    SourceRange opened = current().range;
    if (!expect("[", "after `as`", "as in `x as [new = old]`") || !items(e->items, "]", opened))
      return nullptr;
    for (const Item &item : e->items)
      if (item.value)
        e->depth = std::max(e->depth, item.value->depth + 1);
    e->range = join(e->range, previousRange());
    left = std::move(e);
  }
  return left;
}

/// Levels: or, and, not, comparison, + -, * /, @.
ExprPtr ParserBase::binary(unsigned level) {
  static const std::vector<std::vector<std::string_view>> operators = {
      {"or"}, {"and"}, {"not"}, {"==", "!=", "<", "<=", ">", ">="}, {"+", "-"}, {"*", "/"}, {"@"}};
  if (level == operators.size())
    return unary();
  auto matches = [&] {
    return current().kind != TokenKind::Name &&
           std::any_of(operators[level].begin(), operators[level].end(),
                       [&](std::string_view op) { return current().is(op); });
  };
  if (level == 2) {
    if (!matches())
      return binary(3);
    if (tooDeep())
      return nullptr;
    Deeper deeper(depth);
    auto e = make(ExprKind::Unary, current().range);
    e->text = "not";
    advance();
    ExprPtr operand = binary(2);
    return operand && adopt(*e, std::move(operand)) ? std::move(e) : nullptr;
  }
  ExprPtr left = binary(level + 1);
  while (left && matches()) {
    auto e = make(level == 6 ? ExprKind::Contract : ExprKind::Binary, current().range);
    e->text = current().text;
    advance();
    if (level == 6 && accept("[")) {
      e->flag = true;
      if (!names(e->names, "the name of a dim to contract") || !expect("]", "after the names"))
        return nullptr;
    }
    ExprPtr right = binary(level + 1);
    if (!right || !adopt(*e, std::move(left)) || !adopt(*e, std::move(right)))
      return nullptr;
    left = std::move(e);
    if (level == 3 && matches()) {
      diagnostics.error(current().range, "comparisons do not chain", "write `a < b and b < c`");
      return nullptr;
    }
  }
  return left;
}

ExprPtr ParserBase::unary() {
  if (!current().is("-"))
    return postfix();
  if (tooDeep())
    return nullptr;
  Deeper deeper(depth);
  auto e = make(ExprKind::Unary, current().range);
  e->text = "-";
  advance();
  ExprPtr operand = unary();
  return operand && adopt(*e, std::move(operand)) ? std::move(e) : nullptr;
}

ExprPtr ParserBase::postfix() {
  ExprPtr e = primary();
  while (e) {
    SourceRange range = current().range;
    ExprPtr outer;
    if (current().is("(")) {
      advance();
      outer = make(ExprKind::Call, range);
      outer->opRange = e->range;
      if (!items(outer->items, ")", range))
        return nullptr;
    } else if (current().is("[")) {
      advance();
      outer = make(ExprKind::Index, range);
      if (!items(outer->items, "]", range))
        return nullptr;
      outer->opRange = join(range, previousRange());
    } else if (current().is(".")) {
      advance();
      outer = make(ExprKind::Member, current().range);
      outer->text = current().text;
      Name member;
      if (!name(member, "a name after `.`"))
        return nullptr;
    } else {
      break;
    }
    for (const Item &item : outer->items)
      for (const ExprPtr *child : {&item.value, &item.start, &item.stop, &item.stride})
        if (*child)
          outer->depth = std::max(outer->depth, (*child)->depth + 1);
    outer->range = join(outer->range, previousRange());
    if (!adopt(*outer, std::move(e)))
      return nullptr;
    e = std::move(outer);
  }
  return e;
}

ExprPtr ParserBase::primary() {
  const Token &token = current();
  SourceRange range = token.range;
  ExprPtr e;
  switch (token.kind) {
  case TokenKind::Integer:
  case TokenKind::Real:
    e = make(token.kind == TokenKind::Integer ? ExprKind::Integer : ExprKind::Real, range);
    e->integer = token.integer;
    e->real = token.real;
    e->text = token.text;
    advance();
    return e;
  case TokenKind::String:
    e = make(ExprKind::String, range);
    e->text = token.text;
    advance();
    return e;
  case TokenKind::Name:
    e = make(ExprKind::Name, range);
    e->text = token.text;
    advance();
    return e;
  default:
    break;
  }
  if (token.is("true") || token.is("false")) {
    e = make(ExprKind::Bool, range);
    e->flag = token.is("true");
    advance();
    return e;
  }
  if (accept("(")) {
    e = expression();
    if (!e || !close(")", "to close the parenthesis", range))
      return nullptr;
    e->range = join(range, previousRange());
    return e;
  }
  if (accept("[")) {
    e = make(ExprKind::List, range);
    if (!items(e->items, "]", range))
      return nullptr;
    for (const Item &item : e->items)
      if (item.value)
        e->depth = std::max(e->depth, item.value->depth + 1);
    e->range = join(range, previousRange());
    return e;
  }
  bool power = token.is("*") && position > 0 && tokens[position - 1].is("*");
  fail("an expression", power ? "a power is `pow(x, 2)`" : "");
  return nullptr;
}

/// `a, name = b, 1:2` up to and with the closing bracket.
bool ParserBase::items(std::vector<Item> &out, std::string_view closing, SourceRange opened) {
  while (!current().is(closing)) {
    Item item;
    if ((current().kind == TokenKind::Name || current().kind == TokenKind::Keyword) &&
        peek(1).is("=")) {
      // A word of the language is no option: the checker says which there are.
      item.name = {current().text, current().range};
      advance();
      advance();
    }
    ExprPtr first;
    if (!current().is(":")) {
      first = expression();
      if (!first)
        return false;
    }
    if (closing == "]" && accept(":")) {
      item.slice = true;
      item.start = std::move(first);
      auto bound = [&](ExprPtr &bound) {
        if (current().is(":") || current().is(",") || current().is("]"))
          return true;
        bound = expression();
        return bound != nullptr;
      };
      if (!bound(item.stop))
        return false;
      if (accept(":") && !bound(item.stride))
        return false;
    } else {
      item.value = std::move(first);
      if (!item.value)
        return fail("an expression");
    }
    out.push_back(std::move(item));
    if (!accept(","))
      break;
  }
  std::string hint;
  if (current().is(":") && closing == ")")
    hint = "an option is written `name = value`";
  else if (current().kind == TokenKind::Name || current().kind == TokenKind::Integer)
    hint = "a comma stands between two of them";
  return close(closing, closing == ")" ? "to close the parenthesis" : "to close the bracket",
               opened, hint);
}

bool ParserBase::type(Type &out) {
  out.range = current().range;
  SourceRange opened = peek(current().kind == TokenKind::Name).range;
  if (current().kind == TokenKind::Name) {
    out.element = current().text;
    out.elementRange = current().range;
    advance();
  } else if (!current().is("[")) {
    return fail("a type, such as `[batch, seq]`, `i32[batch]` or `f32`");
  }
  if (accept("[")) {
    out.hasDims = true;
    while (!current().is("]")) {
      ExprPtr dim = expression();
      if (!dim)
        return false;
      out.dims.push_back(std::move(dim));
      if (!accept(","))
        break;
    }
    if (!close("]", "after the dims", opened))
      return false;
  }
  out.range = join(out.range, previousRange());
  return true;
}

} // namespace cleave
