//===- Lexer.h - characters to tokens -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#pragma once

#include "frontend/Source.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

enum class TokenKind : uint8_t {
  End,
  Newline, ///< the end of a line outside parentheses, or `;`
  Name,
  Keyword,
  Integer,
  Real,
  Bytes, ///< a number with a unit, "25MB"
  String,
  Symbol,
};

struct Token {
  TokenKind kind = TokenKind::End;
  SourceRange range;
  std::string text;    ///< a string's text without quotes and escapes, else as written
  int64_t integer = 0; ///< Integer; Bytes, in bytes
  double real = 0;     ///< Integer and Real

  bool is(std::string_view symbolOrWord) const {
    return (kind == TokenKind::Symbol || kind == TokenKind::Keyword || kind == TokenKind::Name) &&
           text == symbolOrWord;
  }
};

/// The words that no value, dim or block may have as its name.
const std::vector<std::string> &keywords();
bool isKeyword(std::string_view word);

/// The file's tokens, End last. Faults go to `diagnostics`; the tokens are
/// usable all the same. Lines do not end inside ( ) and [ ], nor after a
/// comma, an operator or `=`.
std::vector<Token> lex(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics);

} // namespace cleave
