//===- Steps.h - steps before their buffers have places ---------*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
//
// Plain C++: the list of steps with what each reads and writes, the decision
// which donated results are written over their arguments at once, and the move
// from these buffers to a Program's.
//
//===----------------------------------------------------------------------===//
#pragma once

#include "runtime/executable/Executable.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace cleave {

/// Bytes [offset, offset + bytes) of a buffer.
struct Place {
  int32_t buffer = -1;
  int64_t offset = 0, bytes = 0;

  BufferRef ref() const { return {buffer, offset}; }
  bool operator==(const Place &) const = default;
  bool overlaps(const Place &other) const {
    return buffer == other.buffer && offset < other.offset + other.bytes &&
           other.offset < offset + bytes;
  }
};

struct Recorded {
  Step step;
  bool backward = false; ///< of the backward pass
  bool waits = false;    ///< a collective that is not begun early
  std::vector<Place> reads, writes;
  /// (number in reads, number in writes) that may be the same place.
  std::vector<std::pair<int, int>> inPlace;
};

/// The value at `from` must be in the argument's buffer when the program ends.
/// `own`: an arena buffer made for it alone, or -1. It becomes the argument's buffer
/// if that is safe, else it is copied at the end.
struct Donation {
  int32_t argument = 0;
  Place from;
  int32_t own = -1;
};

/// When the sums of gradients over data axes run.
struct GradientOverlap {
  enum class Kind : uint8_t {
    Layers,   ///< each is begun when its gradient is there
    None,     ///< all after the backward pass
    Bucketed, ///< packed into buckets of at most so many bytes, in the order of the backward pass
  } kind = Kind::Layers;
  int64_t bucketBytes = 0;
};

class StepList {
public:
  int32_t addArgument(int32_t index, int64_t bytes);
  int32_t addResult(int32_t index, int64_t bytes);
  int32_t addArena(int64_t bytes);

  Place wholeOf(int32_t buffer) const { return {buffer, 0, buffers[buffer].bytes}; }
  void add(Recorded step) { steps.push_back(std::move(step)); }

  /// To be called once, after the last step that reads arguments. `copyStep`
  /// has the location of the copies that are added.
  void settleDonations(const std::vector<Donation> &donations, const Recorded &copyStep);

  /// Fills in what the program's sites move, and of which params. To be called after
  /// settleDonations.
  void sayWhatMoves(Program &program) const;

  /// By buffer: the argument that it is, or whose copy in another type a kernel makes there; -1.
  std::vector<int32_t> argumentsBehind() const;

  /// Moves and merges the sums of gradients: those of the backward pass whose result nothing
  /// in it reads. Reduce-scatters are moved, never merged. A bucket of several is a site of its
  /// own, and theirs have fewer executions. To be called after settleDonations, before
  /// overlapCollectives.
  void placeGradients(const GradientOverlap &how, std::vector<CollectiveSite> &sites);

  /// Moves the gather of a layer's param (any argument, or a kernel's copy of arguments) to where
  /// the layer before gathers its own, if there are `worthIt` seconds of work in between, which it
  /// may then run beside. To be called after settleDonations.
  void prefetchGathers(double worthIt);

  /// Begins collectives and awaits them where their result is first needed, if there are
  /// `worthIt` seconds of other work in between. To be called after settleDonations.
  void overlapCollectives(double worthIt);

  /// Fills in the program's buffers, steps and arena.
  void finish(Program &program, bool reuseMemory);

private:
  bool conflicts(const Recorded &collective, const Recorded &step) const;
  size_t firstConflict(size_t collective) const;
  /// By buffer: the steps that read it, in order.
  using Readers = std::vector<std::vector<size_t>>;
  Readers readers() const;
  std::vector<size_t> readersOf(size_t step, const Readers &readers) const;
  bool entersProduct(size_t step, const Readers &readers,
                     std::vector<std::optional<bool>> &known) const;
  std::string paramOf(size_t gradient, const Readers &readers, const Program &program) const;
  struct Bucket;
  void fill(const Bucket &bucket, std::vector<CollectiveSite> &sites,
            std::map<size_t, std::vector<Recorded>> &before);
  bool mayReplace(int32_t donated, int32_t argument, const std::vector<Place> &readAtEnd) const;
  void shareInPlace();
  int32_t find(int32_t buffer) const;

  std::vector<Buffer> buffers;
  std::vector<int32_t> sameAs; ///< union-find: which buffers have become one
  std::vector<int32_t> argumentBuffers;
  std::vector<Recorded> steps;
};

} // namespace cleave
