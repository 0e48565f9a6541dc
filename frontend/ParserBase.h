//===- ParserBase.h - tokens and expressions (internal) -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Ast.h"
#include "frontend/Lexer.h"

#include <algorithm>

namespace cleave {

using namespace ast;

/// The token stream, and the expressions and types that all declarations are
/// made of. Recursive descent: a function that cannot go on reports and returns
/// null or false; statement loops then skip to the next line.
class ParserBase {
protected:
  ParserBase(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics)
      : diagnostics(diagnostics), text(sources.file(file).text()),
        tokens(lex(sources, file, diagnostics)) {
    for (const Diagnostic &fault : diagnostics.all())
      if (fault.range.file == file)
        unreadable.push_back(fault.range.begin);
    std::sort(unreadable.begin(), unreadable.end());
  }

  static constexpr unsigned maxDepth = 200;
  Diagnostics &diagnostics;
  std::string_view text;
  std::vector<Token> tokens;
  std::vector<uint32_t> unreadable; ///< where the lexer found faults, ascending
  size_t position = 0;
  unsigned depth = 0;

  //===--------------------------------------------------------------------===//
  // Tokens
  //===--------------------------------------------------------------------===//

  const Token &current() const { return tokens[position]; }
  const Token &peek(size_t ahead) const {
    return tokens[std::min(position + ahead, tokens.size() - 1)];
  }
  bool atEnd() const { return current().kind == TokenKind::End || diagnostics.full(); }
  SourceRange previousRange() const { return tokens[position ? position - 1 : 0].range; }
  void advance() {
    if (current().kind != TokenKind::End)
      ++position;
  }
  bool accept(std::string_view text) {
    if (!current().is(text))
      return false;
    advance();
    return true;
  }
  void skipNewlines() {
    while (current().kind == TokenKind::Newline)
      advance();
  }
  std::string found() const {
    switch (current().kind) {
    case TokenKind::End:
      return "the end of the file";
    case TokenKind::Newline:
      return peek(1).kind == TokenKind::End ? "the end of the file" : "the end of the line";
    case TokenKind::String:
      return "a string";
    default:
      return quoted(current().text);
    }
  }
  /// Whether the lexer found a fault before, in the same line: what follows
  /// from it needs no words.
  bool followsFault() const {
    uint32_t at = current().range.begin;
    auto next = std::upper_bound(unreadable.begin(), unreadable.end(), at);
    return next != unreadable.begin() &&
           text.substr(next[-1], at - next[-1]).find('\n') == std::string_view::npos;
  }
  bool fail(const std::string &expected, const std::string &hint = {}) {
    if (followsFault())
      return false;
    std::string where = current().kind == TokenKind::Keyword
                            ? found() + ", which is a word of the language"
                            : found();
    diagnostics.error(current().range, "expected " + expected + ", found " + where, hint);
    return false;
  }
  bool expect(std::string_view text, const std::string &after, const std::string &hint = {}) {
    return accept(text) || fail("`" + std::string(text) + "` " + after, hint);
  }
  /// The closing bracket, or the closing brace of a body; `opened` is the other one.
  bool close(std::string_view bracket, const std::string &what, SourceRange opened,
             const std::string &hint = {}) {
    if (accept(bracket))
      return true;
    // At the end of the file the innermost is enough.
    bool said = current().kind == TokenKind::End && !diagnostics.empty() &&
                diagnostics.all().back().range == current().range;
    if (said || followsFault())
      return false;
    diagnostics
        .error(current().range,
               "expected `" + std::string(bracket) + "` " + what + ", found " + found(), hint)
        .notes.push_back({opened, "it is opened here"});
    return false;
  }
  bool name(Name &out, const std::string &what) {
    if (current().kind != TokenKind::Name)
      return fail(what);
    out = {current().text, current().range};
    advance();
    return true;
  }
  bool names(std::vector<Name> &out, const std::string &what) {
    do {
      Name next;
      if (!name(next, what))
        return false;
      out.push_back(std::move(next));
    } while (accept(","));
    return true;
  }
  /// The end of a statement: a new line, `;`, or before `}`.
  bool endOfStatement() {
    if (current().kind == TokenKind::Newline) {
      advance();
      return true;
    }
    if (current().is("}") || current().kind == TokenKind::End)
      return true;
    bool closing = current().is(")") || current().is("]");
    return fail("the end of the statement", closing ? "nothing is open that it closes"
                                                    : "statements end with a new line or `;`");
  }
  /// After a fault: on to the next line of this block, over nested braces.
  void skipStatement() {
    unsigned braces = 0;
    while (!atEnd()) {
      if (braces == 0 && current().is("}"))
        return;
      if (current().is("{"))
        ++braces;
      if (current().is("}"))
        --braces;
      bool newline = current().kind == TokenKind::Newline;
      advance();
      if (newline && braces == 0)
        return;
    }
  }
  void skipToTopLevel() {
    while (!atEnd()) {
      advance();
      bool lineBegins = position > 0 && (tokens[position - 1].kind == TokenKind::Newline ||
                                         tokens[position - 1].is("}"));
      if (lineBegins && (current().is("model") || current().is("plan")))
        return;
    }
  }
  bool tooDeep() {
    if (depth < maxDepth)
      return false;
    diagnostics.error(current().range, "nested more than " + std::to_string(maxDepth) + " deep",
                      "name parts of it: `part_of_it = ...`");
    // Whatever follows cannot be read in a useful way.
    position = tokens.size() - 1;
    return true;
  }
  struct Deeper {
    unsigned &depth;
    explicit Deeper(unsigned &depth) : depth(depth) { ++depth; }
    ~Deeper() { --depth; }
  };

  //===--- ParserExpr.cpp ---------------------------------------------------===//
  ExprPtr expression();
  /// `opened`: the bracket before them.
  bool items(std::vector<Item> &out, std::string_view closing, SourceRange opened);
  bool type(Type &out);

private:
  ExprPtr make(ExprKind kind, SourceRange range);
  bool adopt(Expr &parent, ExprPtr child);
  ExprPtr binary(unsigned level);
  ExprPtr unary();
  ExprPtr postfix();
  ExprPtr primary();
};

} // namespace cleave
