//===- Result.h - errors as values ------------------------------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Library code never prints and never exits: it returns an Error, and only the
// tools print it and choose the exit code.
//
//===----------------------------------------------------------------------===//
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace cleave {

/// Who is at fault. The tools turn this into their exit code.
enum class Fault {
  User,     ///< the user's input: exit code 1
  Internal, ///< ours: exit code 2
  Differs,  ///< two things were compared and differ: exit code 3
  Rank,     ///< a rank failed: exit code 4
};

/// A message for a person: where it is, the user's own words, the numbers on
/// both sides, and what to do.
struct Error {
  std::string message;
  Fault fault = Fault::User;
};

/// A value or an Error. Owns what it holds.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T value) : state(std::move(value)) {}
  Result(Error error) : state(std::move(error)) {}

  explicit operator bool() const { return std::holds_alternative<T>(state); }
  T &operator*() {
    assert(*this && "no value");
    return std::get<T>(state);
  }
  const T &operator*() const { return std::get<T>(state); }
  T *operator->() { return &**this; }
  const T *operator->() const { return &**this; }
  const Error &error() const { return std::get<Error>(state); }

private:
  std::variant<T, Error> state;
};

/// Success or an Error.
template <> class [[nodiscard]] Result<void> {
public:
  Result() = default;
  Result(Error error) : failure(std::move(error)) {}

  explicit operator bool() const { return !failure; }
  const Error &error() const { return *failure; }

private:
  std::optional<Error> failure;
};

using Status = Result<void>;

} // namespace cleave
