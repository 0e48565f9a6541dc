//===- Peers.cpp - other libraries' matrix products -----------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "Peers.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace cleave::bench {

std::string Shape::text() const {
  return fmt::format("{}x{}x{} {}{}", m, n, k, transA ? 'T' : 'N', transB ? 'T' : 'N');
}

namespace {
/// The C interface to BLAS: row-major 101, as stored 111, transposed 112.
using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float *, int, const float *,
                            int, float, float *, int);
using DnnlSgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                          const float *, int64_t, float, float *, int64_t);
using SetThreads = void (*)(int);
using SetThreadsLong = void (*)(int64_t);

struct Library {
  const char *name;
  std::vector<std::string> files; ///< the first that can be loaded is taken
  const char *multiply, *setThreads;
  const char *package;
};

const Library libraries[] = {
    {"OpenBLAS",
     {"/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", "libopenblas.so.0"},
     "cblas_sgemm",
     "openblas_set_num_threads",
     "libopenblas0-pthread"},
    {"BLIS",
     {"/usr/lib/x86_64-linux-gnu/blis-pthread/libblis.so.4", "libblis.so.4"},
     "cblas_sgemm",
     "bli_thread_set_num_threads",
     "libblis4-pthread"},
    {"oneDNN", {"libdnnl.so.2", "libdnnl.so.3"}, "dnnl_sgemm", "omp_set_num_threads", "libdnnl2"},
};

Peer load(const Library &library) {
  Peer peer{library.name, {}, {}};
  void *handle = nullptr;
  for (const std::string &file : library.files)
    if ((handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)))
      break;
  if (!handle) {
    peer.missing = fmt::format("not installed (Debian: {})", library.package);
    return peer;
  }
  void *multiply = dlsym(handle, library.multiply), *set = dlsym(handle, library.setThreads);
  if (!multiply || !set) {
    peer.missing =
        fmt::format("the library lacks {}", multiply ? library.setThreads : library.multiply);
    return peer;
  }
  // BLIS counts in 64 bits, the others in 32.
  auto setThreads = [=, wide = peer.name == "BLIS"](int threads) {
    wide ? reinterpret_cast<SetThreadsLong>(set)(threads)
         : reinterpret_cast<SetThreads>(set)(threads);
  };
  if (peer.name == "oneDNN")
    peer.multiply = [=](const Shape &s, const float *a, const float *b, float *c, int threads) {
      setThreads(threads);
      reinterpret_cast<DnnlSgemm>(multiply)(s.transA ? 'T' : 'N', s.transB ? 'T' : 'N', s.m, s.n,
                                            s.k, 1, a, s.lda(), b, s.ldb(), 0, c, s.n);
    };
  else
    peer.multiply = [=](const Shape &s, const float *a, const float *b, float *c, int threads) {
      setThreads(threads);
      reinterpret_cast<CblasSgemm>(multiply)(101, s.transA ? 112 : 111, s.transB ? 112 : 111,
                                             int(s.m), int(s.n), int(s.k), 1, a, int(s.lda()), b,
                                             int(s.ldb()), 0, c, int(s.n));
    };
  return peer;
}
} // namespace

std::vector<Peer> loadPeers() {
  std::vector<Peer> peers;
  for (const Library &library : libraries)
    peers.push_back(load(library));
  return peers;
}

} // namespace cleave::bench
