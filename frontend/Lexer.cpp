//===- Lexer.cpp - characters to tokens -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Lexer.h"

#include <algorithm>
#include <charconv>

namespace cleave {

const std::vector<std::string> &keywords() {
  static const std::vector<std::string> words = {
      "and",   "as",  "block", "dim",   "else", "false", "fn",     "for",    "free", "if",     "in",
      "model", "not", "or",    "param", "part", "plan",  "repeat", "return", "true", "weights"};
  return words;
}

bool isKeyword(std::string_view word) {
  return std::find(keywords().begin(), keywords().end(), word) != keywords().end();
}

namespace {

bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool isDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
public:
  Lexer(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics)
      : text(sources.file(file).text()), file(file), diagnostics(diagnostics) {}

  std::vector<Token> run() {
    if (text.starts_with("\xEF\xBB\xBF"))
      position = 3; // a byte order mark
    while (position < text.size() && !diagnostics.full())
      next();
    // The end is where the last token ends, so that it has a line to be shown.
    position = text.size();
    for (size_t i = tokens.size(); i-- > 0;)
      if (tokens[i].kind != TokenKind::Newline) {
        position = tokens[i].range.end;
        break;
      }
    push(TokenKind::Newline, position);
    push(TokenKind::End, position);
    return std::move(tokens);
  }

private:
  std::string_view text;
  uint32_t file;
  Diagnostics &diagnostics;
  uint32_t position = 0;
  unsigned depth = 0; ///< open ( and [
  std::vector<Token> tokens;

  SourceRange range(uint32_t begin) const { return {file, begin, position}; }
  char peek(uint32_t ahead = 0) const {
    return position + ahead < text.size() ? text[position + ahead] : '\0';
  }
  Token &push(TokenKind kind, uint32_t begin) {
    tokens.push_back({kind, range(begin), std::string(text.substr(begin, position - begin)), 0, 0});
    return tokens.back();
  }

  /// Whether the statement goes on in the next line.
  bool lineIsOpen() const {
    if (tokens.empty())
      return true;
    const Token &last = tokens.back();
    static const std::string_view open[] = {",", "+",  "-", "*",  "/",  "@",   "=",  "==",  "!=",
                                            "<", "<=", ">", ">=", "->", "and", "or", "not", "as"};
    return last.kind == TokenKind::Newline ||
           std::any_of(std::begin(open), std::end(open), [&](auto s) { return last.is(s); });
  }

  void next() {
    uint32_t begin = position;
    char c = text[position];
    if (c == '\n') {
      ++position;
      if (depth == 0 && !lineIsOpen())
        push(TokenKind::Newline, begin);
      return;
    }
    if (c == ' ' || c == '\t' || c == '\r') {
      ++position;
      return;
    }
    if (c == '#') {
      while (position < text.size() && text[position] != '\n')
        ++position;
      return;
    }
    if (isLetter(c))
      return word(begin);
    if (isDigit(c) || (c == '.' && isDigit(peek(1))))
      return number(begin);
    if (c == '"')
      return string(begin);
    symbol(begin);
  }

  void word(uint32_t begin) {
    while (isLetter(peek()) || isDigit(peek()))
      ++position;
    std::string_view word = text.substr(begin, position - begin);
    if (!isKeyword(word)) {
      push(TokenKind::Name, begin);
      return;
    }
    // These words only start statements: a bracket was left open before.
    static const std::string_view starters[] = {"model", "plan", "block",  "part",   "param",  "fn",
                                                "free",  "dim",  "repeat", "return", "weights"};
    size_t next = text.find_first_not_of(" \t", position);
    bool starts = next != std::string_view::npos && (isLetter(text[next]) || text[next] == '"');
    if (depth > 0 && starts &&
        std::find(std::begin(starters), std::end(starters), word) != std::end(starters)) {
      depth = 0;
      tokens.push_back({TokenKind::Newline, {file, begin, begin}, "", 0, 0});
    }
    push(TokenKind::Keyword, begin);
  }

  void number(uint32_t begin) {
    bool real = false;
    while (isDigit(peek()) || peek() == '_')
      ++position;
    if (peek() == '.' && peek(1) != '.') {
      real = true;
      ++position;
      while (isDigit(peek()) || peek() == '_')
        ++position;
    }
    if ((peek() == 'e' || peek() == 'E') &&
        (isDigit(peek(1)) || ((peek(1) == '+' || peek(1) == '-') && isDigit(peek(2))))) {
      real = true;
      position += 2;
      while (isDigit(peek()))
        ++position;
    }
    bool glued = isLetter(peek());
    uint32_t unit = position;
    while (isLetter(peek()) || isDigit(peek()))
      ++position;
    Token &token = push(real ? TokenKind::Real : TokenKind::Integer, begin);
    if (glued && bytes(token, std::string(text.substr(begin, unit - begin)),
                       text.substr(unit, position - unit)))
      return;
    if (glued) {
      diagnostics.error(range(begin), quoted(token.text) + " is neither a number nor a name",
                        "a name starts with a letter");
      return;
    }
    std::string digits = token.text;
    std::erase(digits, '_');
    const char *first = digits.data(), *last = first + digits.size();
    auto parsed = std::from_chars(first, last, token.real);
    if (parsed.ec != std::errc())
      diagnostics.error(range(begin),
                        "the number " + quoted(token.text) + " is too large or too small");
    if (!real && std::from_chars(first, last, token.integer).ec != std::errc()) {
      diagnostics.error(range(begin), "the number " + quoted(token.text) + " is too large");
      token.integer = 1;
    }
  }

  /// Whether the letters behind a number are a unit; then the token is a size.
  bool bytes(Token &token, std::string digits, std::string_view unit) {
    static const std::pair<std::string_view, double> units[] = {
        {"B", 1},    {"kB", 1e3},   {"KB", 1e3},      {"MB", 1e6},
        {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
    const auto *known = std::find_if(std::begin(units), std::end(units),
                                     [&](const auto &u) { return u.first == unit; });
    if (known == std::end(units))
      return false;
    std::erase(digits, '_');
    double number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    double size = number * known->second;
    if (!(size < 9e15)) {
      diagnostics.error(token.range, "the size " + quoted(token.text) + " is too large");
      size = 1;
    }
    token.kind = TokenKind::Bytes;
    token.integer = static_cast<int64_t>(size);
    return true;
  }

  void string(uint32_t begin) {
    ++position;
    std::string value;
    bool closed = false;
    while (position < text.size() && text[position] != '\n') {
      char c = text[position++];
      if (c == '"') {
        closed = true;
        break;
      }
      if (c == '\\' && (peek() == '"' || peek() == '\\')) {
        value += text[position++];
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
        diagnostics.error({file, position - 1, position}, "a control character in a string");
      value += c;
    }
    if (!closed)
      diagnostics.error(range(begin), "the string has no end",
                        "close it with `\"` in the same line");
    push(TokenKind::String, begin).text = value;
  }

  void symbol(uint32_t begin) {
    static const std::string_view pairs[] = {"->", "==", "!=", "<=", ">="};
    for (std::string_view pair : pairs)
      if (text.substr(position, 2) == pair) {
        position += 2;
        push(TokenKind::Symbol, begin);
        return;
      }
    char c = text[position++];
    if (c == ';') {
      depth = 0;
      push(TokenKind::Newline, begin);
      return;
    }
    if (std::string_view("(){}[],:=+-*/@<>.").find(c) == std::string_view::npos || c == '\0') {
      badCharacter(begin, c);
      return;
    }
    if (c == '(' || c == '[')
      ++depth;
    if ((c == ')' || c == ']') && depth > 0)
      --depth;
    if (c == '{' || c == '}')
      depth = 0;
    push(TokenKind::Symbol, begin);
  }

  void badCharacter(uint32_t begin, char c) {
    // A run of such bytes is one fault.
    auto bad = [&](char b) {
      return static_cast<unsigned char>(b) >= 0x80 ||
             (static_cast<unsigned char>(b) < 0x20 && b != '\n' && b != '\t' && b != '\r');
    };
    if (bad(c))
      while (position < text.size() && bad(text[position]))
        ++position;
    std::string_view bytes = text.substr(begin, position - begin);
    std::string hint;
    if (static_cast<unsigned char>(c) >= 0x80)
      hint = "names are ASCII letters, digits and `_`";
    else if (c == '\'')
      hint = "strings stand in double quotes";
    else if (c == '%')
      hint = "there is no remainder; the operators are + - * / @ == != < <= > >= and or not as";
    else if (c == '$' || c == '!' || c == '&' || c == '|' || c == '?')
      hint = "the operators are + - * / @ == != < <= > >= and or not as";
    diagnostics.error(range(begin), quoted(bytes) + " has no meaning here", hint);
  }
};

} // namespace

std::vector<Token> lex(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics) {
  return Lexer(sources, file, diagnostics).run();
}

} // namespace cleave
