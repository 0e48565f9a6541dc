//===- Composites.cpp - composite ops by their definitions ----------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "ir/interpret/Composites.h"
#include "runtime/core/Philox.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace cleave;
using namespace cleave::composite;

//===----------------------------------------------------------------------===//
// Arrays
//===----------------------------------------------------------------------===//

int64_t cleave::elementsOf(const std::vector<int64_t> &shape) {
  int64_t n = 1;
  for (int64_t size : shape)
    n *= size;
  return n;
}

std::vector<int64_t> cleave::rowMajorStrides(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Array Array::zeros(std::vector<int64_t> shape, bool integer) {
  Array a;
  size_t n = static_cast<size_t>(elementsOf(shape));
  a.shape = std::move(shape);
  a.integer = integer;
  if (integer)
    a.ints.assign(n, 0);
  else
    a.reals.assign(n, 0.0);
  return a;
}

bool NamedArray::has(const std::string &name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t NamedArray::sizeOf(const std::string &name) const {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name)
      return array->shape[i];
  return 0;
}

std::vector<int64_t> NamedArray::stridesFor(const std::vector<std::string> &wanted) const {
  std::vector<int64_t> out(wanted.size(), 0);
  if (!array)
    return out;
  std::vector<int64_t> own = rowMajorStrides(array->shape);
  for (size_t i = 0; i < wanted.size(); ++i)
    for (size_t j = 0; j < names.size(); ++j)
      if (names[j] == wanted[i])
        out[i] = own[j];
  return out;
}

//===----------------------------------------------------------------------===//
// Norms and softmax
//===----------------------------------------------------------------------===//

namespace {

/// x's dims in two parts: those of one row, and those that number the rows.
struct Rows {
  Names outer, inner;
  std::vector<int64_t> outerSizes, innerSizes;

  Rows(const NamedArray &x, const Names &dims) {
    for (size_t i = 0; i < x.names.size(); ++i) {
      bool in = std::find(dims.begin(), dims.end(), x.names[i]) != dims.end();
      (in ? inner : outer).push_back(x.names[i]);
      (in ? innerSizes : outerSizes).push_back(x.array->shape[i]);
    }
  }
};

} // namespace

Array composite::layerNorm(const NamedArray &x, const NamedArray &weight, const NamedArray &bias,
                           const Names &dims, double epsilon) {
  Rows rows(x, dims);
  Array y = Array::zeros(x.array->shape, false);
  double n = static_cast<double>(elementsOf(rows.innerSizes));
  auto xi = x.stridesFor(rows.inner), wi = weight.stridesFor(rows.inner),
       bi = bias.stridesFor(rows.inner);
  const double *px = x.array->reals.data(), *pw = weight.array->reals.data(),
               *pb = bias.array->reals.data();
  walk<3>(rows.outerSizes,
          {x.stridesFor(rows.outer), weight.stridesFor(rows.outer), bias.stridesFor(rows.outer)},
          [&](auto row) {
            double mean = 0, variance = 0;
            walk<1>(rows.innerSizes, {xi}, [&](auto at) { mean += px[row[0] + at[0]]; });
            mean /= n;
            walk<1>(rows.innerSizes, {xi}, [&](auto at) {
              double d = px[row[0] + at[0]] - mean;
              variance += d * d;
            });
            variance /= n;
            walk<3>(rows.innerSizes, {xi, wi, bi}, [&](auto at) {
              y.reals[row[0] + at[0]] =
                  (px[row[0] + at[0]] - mean) / std::sqrt(variance + epsilon) * pw[row[1] + at[1]] +
                  pb[row[2] + at[2]];
            });
          });
  return y;
}

Array composite::rmsNorm(const NamedArray &x, const NamedArray &weight, const Names &dims,
                         double epsilon) {
  Rows rows(x, dims);
  Array y = Array::zeros(x.array->shape, false);
  double n = static_cast<double>(elementsOf(rows.innerSizes));
  auto xi = x.stridesFor(rows.inner), wi = weight.stridesFor(rows.inner);
  const double *px = x.array->reals.data(), *pw = weight.array->reals.data();
  walk<2>(rows.outerSizes, {x.stridesFor(rows.outer), weight.stridesFor(rows.outer)},
          [&](auto row) {
            double square = 0;
            walk<1>(rows.innerSizes, {xi},
                    [&](auto at) { square += px[row[0] + at[0]] * px[row[0] + at[0]]; });
            double rms = std::sqrt(square / n + epsilon);
            walk<2>(rows.innerSizes, {xi, wi}, [&](auto at) {
              y.reals[row[0] + at[0]] = px[row[0] + at[0]] / rms * pw[row[1] + at[1]];
            });
          });
  return y;
}

Array composite::softmax(const NamedArray &x, const Names &dims) {
  Rows rows(x, dims);
  Array y = Array::zeros(x.array->shape, false);
  auto xi = x.stridesFor(rows.inner);
  const double *px = x.array->reals.data();
  walk<1>(rows.outerSizes, {x.stridesFor(rows.outer)}, [&](auto row) {
    double top = -std::numeric_limits<double>::infinity(), total = 0;
    walk<1>(rows.innerSizes, {xi}, [&](auto at) {
      double v = px[row[0] + at[0]];
      top = std::isnan(v) || v > top ? v : top;
    });
    walk<1>(rows.innerSizes, {xi}, [&](auto at) { total += std::exp(px[row[0] + at[0]] - top); });
    walk<1>(rows.innerSizes, {xi},
            [&](auto at) { y.reals[row[0] + at[0]] = std::exp(px[row[0] + at[0]] - top) / total; });
  });
  return y;
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

Array composite::gelu(const Array &x, bool tanh) {
  Array y = x;
  for (double &v : y.reals)
    v = tanh ? 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)))
             : 0.5 * v * std::erfc(-v / std::sqrt(2.0));
  return y;
}

Array composite::silu(const Array &x) {
  Array y = x;
  for (double &v : y.reals)
    v = v / (1 + std::exp(-v));
  return y;
}

Array composite::relu(const Array &x) {
  Array y = x;
  for (double &v : y.reals)
    v = v <= 0 ? 0 : v;
  return y;
}

Array composite::dropout(const Array &x, double rate, const RandomSite &site) {
  Array y = x;
  if (rate == 0)
    return y;
  Philox random(site.seed, site.step, site.site, site.layer);
  for (size_t i = 0; i < y.reals.size(); ++i)
    y.reals[i] = random.uniform(i) >= rate ? y.reals[i] / (1 - rate) : 0.0;
  return y;
}

Array composite::rope(const NamedArray &x, const NamedArray &positions, const std::string &dim,
                      double base, bool interleaved, int64_t rotary) {
  Array y = *x.array;
  Rows rows(x, {dim});
  int64_t stride = x.stridesFor({dim})[0];
  const double *px = x.array->reals.data();
  walk<2>(rows.outerSizes, {x.stridesFor(rows.outer), positions.stridesFor(rows.outer)},
          [&](auto row) {
            double position = positions.array->number(row[1]);
            for (int64_t i = 0; i < rotary / 2; ++i) {
              double angle = position * std::pow(base, -2.0 * static_cast<double>(i) /
                                                           static_cast<double>(rotary));
              int64_t a = row[0] + (interleaved ? 2 * i : i) * stride;
              int64_t b = row[0] + (interleaved ? 2 * i + 1 : i + rotary / 2) * stride;
              y.reals[a] = px[a] * std::cos(angle) - px[b] * std::sin(angle);
              y.reals[b] = px[a] * std::sin(angle) + px[b] * std::cos(angle);
            }
          });
  return y;
}

Array composite::concat(const std::vector<NamedArray> &inputs, const Names &dims,
                        const Names &result, const std::string &resultDim) {
  std::vector<int64_t> shape(result.size());
  int64_t joined = 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    joined += inputs[i].sizeOf(dims[i]);
  for (size_t d = 0; d < result.size(); ++d)
    shape[d] = result[d] == resultDim ? joined : inputs[0].sizeOf(result[d]);
  Array y = Array::zeros(shape, inputs[0].array->integer);
  NamedArray target{result, &y};
  int64_t start = 0, along = target.stridesFor({resultDim})[0];
  for (size_t i = 0; i < inputs.size(); ++i) {
    Names there = inputs[i].names;
    std::replace(there.begin(), there.end(), dims[i], resultDim);
    walk<2>(inputs[i].array->shape,
            {rowMajorStrides(inputs[i].array->shape), target.stridesFor(there)}, [&](auto at) {
              if (y.integer)
                y.ints[start * along + at[1]] = inputs[i].array->ints[at[0]];
              else
                y.reals[start * along + at[1]] = inputs[i].array->reals[at[0]];
            });
    start += inputs[i].sizeOf(dims[i]);
  }
  return y;
}

//===----------------------------------------------------------------------===//
// Cross-entropy and attention
//===----------------------------------------------------------------------===//

Array composite::crossEntropy(const NamedArray &logits, const NamedArray &labels,
                              const std::string &dim, int64_t ignore, double smoothing) {
  Rows rows(logits, {dim});
  int64_t classes = logits.sizeOf(dim), stride = logits.stridesFor({dim})[0];
  double total = 0, count = 0;
  walk<2>(rows.outerSizes, {logits.stridesFor(rows.outer), labels.stridesFor(rows.outer)},
          [&](auto row) {
            int64_t label = labels.array->ints[row[1]];
            if (label == ignore)
              return;
            const double *x = logits.array->reals.data() + row[0];
            double top = -std::numeric_limits<double>::infinity(), sum = 0, all = 0;
            for (int64_t c = 0; c < classes; ++c)
              top = std::isnan(x[c * stride]) || x[c * stride] > top ? x[c * stride] : top;
            for (int64_t c = 0; c < classes; ++c)
              sum += std::exp(x[c * stride] - top);
            double lse = top + std::log(sum);
            for (int64_t c = 0; c < classes; ++c)
              all += lse - x[c * stride];
            double nll = label >= 0 && label < classes ? lse - x[label * stride]
                                                       : std::numeric_limits<double>::quiet_NaN();
            total += (1 - smoothing) * nll + smoothing * all / static_cast<double>(classes);
            count += 1;
          });
  return Array::ofReals({}, {count == 0 ? 0.0 : total / count});
}

namespace {

int64_t along(const NamedArray &a, const std::string &dim) { return a.stridesFor({dim})[0]; }

/// One query's view of the keys.
struct ScoreRow {
  int64_t q, k, v;          ///< offsets of the row, of the first key and of the first value
  std::vector<double> p;    ///< softmax: 0 where nothing is seen
  std::vector<double> kept; ///< dropout's factor: 0 or 1 / (1 - rate)
  double lse;
};

/// Calls f(row, offsets in `others`) for each query.
template <typename F>
void forEachScoreRow(const NamedArray &q, const NamedArray &k, const NamedArray &v,
                     const NamedArray &mask, const NamedArray &bias,
                     const composite::AttentionShape &shape, const composite::RandomSite &site,
                     const NamedArray &result, const NamedArray &lse, F &&f) {
  Rows rows(q, {shape.depthDim});
  int64_t keys = k.sizeOf(shape.keyDim), depth = q.sizeOf(shape.depthDim);
  int64_t qd = along(q, shape.depthDim), kd = along(k, shape.depthDim), kk = along(k, shape.keyDim),
          mk = along(mask, shape.keyDim), bk = along(bias, shape.keyDim);
  // Random numbers are numbered by q's dims without depth, then query, then key.
  Names numbered;
  Array counter;
  for (size_t i = 0; i < rows.outer.size(); ++i)
    if (rows.outer[i] != shape.queryDim) {
      numbered.push_back(rows.outer[i]);
      counter.shape.push_back(rows.outerSizes[i]);
    }
  numbered.insert(numbered.end(), {shape.queryDim, shape.keyDim});
  counter.shape.insert(counter.shape.end(), {q.sizeOf(shape.queryDim), keys});
  if (!shape.globalSizes.empty())
    counter.shape = shape.globalSizes;
  NamedArray counted{numbered, &counter};
  int64_t first = 0;
  for (size_t i = 0; i < shape.starts.size(); ++i)
    first += shape.starts[i] * rowMajorStrides(counter.shape)[i];
  Philox random(site.seed, site.step, site.site, site.layer);

  Array position;
  position.shape = {q.sizeOf(shape.queryDim)};
  NamedArray queryIndex{{shape.queryDim}, &position};
  ScoreRow row;
  walk<9>(rows.outerSizes,
          {q.stridesFor(rows.outer), k.stridesFor(rows.outer), v.stridesFor(rows.outer),
           mask.stridesFor(rows.outer), bias.stridesFor(rows.outer), result.stridesFor(rows.outer),
           lse.stridesFor(rows.outer), counted.stridesFor(rows.outer),
           queryIndex.stridesFor(rows.outer)},
          [&](auto at) {
            row.q = at[0];
            row.k = at[1];
            row.v = at[2];
            row.p.assign(keys, 0);
            row.kept.assign(keys, 1);
            double top = -std::numeric_limits<double>::infinity(), total = 0;
            auto seen = [&](int64_t j) {
              return (!mask.array || mask.array->ints[at[3] + j * mk]) &&
                     (!shape.causal || j <= at[8] + shape.shift);
            };
            for (int64_t j = 0; j < keys; ++j) {
              if (!seen(j))
                continue;
              double s = 0;
              for (int64_t d = 0; d < depth; ++d)
                s += q.array->reals[at[0] + d * qd] * k.array->reals[at[1] + j * kk + d * kd];
              s *= shape.scale;
              if (bias.array)
                s += bias.array->reals[at[4] + j * bk];
              row.p[j] = s;
              top = std::isnan(s) || s > top ? s : top;
            }
            // Nothing is seen: the row and its lse are 0.
            bool blind = top == -std::numeric_limits<double>::infinity();
            for (int64_t j = 0; j < keys; ++j) {
              row.p[j] = seen(j) && !blind ? std::exp(row.p[j] - top) : 0;
              total += row.p[j];
            }
            row.lse = blind ? 0 : top + std::log(total);
            for (int64_t j = 0; j < keys; ++j) {
              if (!blind)
                row.p[j] /= total;
              if (shape.rate > 0)
                row.kept[j] = random.uniform(static_cast<uint64_t>(first + at[7] + j)) >= shape.rate
                                  ? 1 / (1 - shape.rate)
                                  : 0;
            }
            f(row, at[5], at[6]);
          });
}

} // namespace

AttentionArrays composite::attention(const NamedArray &q, const NamedArray &k, const NamedArray &v,
                                     const NamedArray &mask, const NamedArray &bias,
                                     const AttentionShape &shape, const RandomSite &site,
                                     const Names &resultNames, const Names &lseNames) {
  auto zeros = [&](const Names &names) {
    std::vector<int64_t> sizes;
    for (const std::string &name : names)
      sizes.push_back(name == shape.valueDim ? v.sizeOf(name) : q.sizeOf(name));
    return Array::zeros(sizes, false);
  };
  AttentionArrays out{zeros(resultNames), zeros(lseNames)};
  NamedArray result{resultNames, &out.result}, lse{lseNames, &out.lse};
  int64_t values = v.sizeOf(shape.valueDim), vk = along(v, shape.keyDim),
          vv = along(v, shape.valueDim), rv = along(result, shape.valueDim);
  forEachScoreRow(q, k, v, mask, bias, shape, site, result, lse,
                  [&](const ScoreRow &row, int64_t to, int64_t lseTo) {
                    out.lse.reals[lseTo] = row.lse;
                    for (size_t j = 0; j < row.p.size(); ++j)
                      if (double weight = row.p[j] * row.kept[j]; weight != 0)
                        for (int64_t d = 0; d < values; ++d)
                          out.result.reals[to + d * rv] +=
                              weight *
                              v.array->reals[row.v + static_cast<int64_t>(j) * vk + d * vv];
                  });
  return out;
}

AttentionGradients composite::attentionGradients(const NamedArray &q, const NamedArray &k,
                                                 const NamedArray &v, const NamedArray &mask,
                                                 const NamedArray &bias, const NamedArray &gradient,
                                                 const NamedArray &lseGradient,
                                                 const AttentionShape &shape,
                                                 const RandomSite &site) {
  AttentionGradients out{Array::zeros(q.array->shape, false), Array::zeros(k.array->shape, false),
                         Array::zeros(v.array->shape, false)};
  int64_t depth = q.sizeOf(shape.depthDim), values = v.sizeOf(shape.valueDim);
  int64_t qd = along(q, shape.depthDim), kd = along(k, shape.depthDim), kk = along(k, shape.keyDim),
          vk = along(v, shape.keyDim), vv = along(v, shape.valueDim),
          gv = along(gradient, shape.valueDim);
  const std::vector<double> &g = gradient.array->reals;
  forEachScoreRow(q, k, v, mask, bias, shape, site, gradient, lseGradient,
                  [&](const ScoreRow &row, int64_t from, int64_t lseFrom) {
                    // y = sum of p kept v; d p = kept (g . v); d s = p (d p - sum of p d p + d
                    // lse).
                    std::vector<double> dp(row.p.size());
                    double mean = lseGradient.array ? -lseGradient.array->reals[lseFrom] : 0;
                    for (size_t j = 0; j < row.p.size(); ++j) {
                      int64_t at = row.v + static_cast<int64_t>(j) * vk;
                      for (int64_t d = 0; d < values; ++d) {
                        dp[j] += g[from + d * gv] * v.array->reals[at + d * vv];
                        out.value.reals[at + d * vv] += row.p[j] * row.kept[j] * g[from + d * gv];
                      }
                      dp[j] *= row.kept[j];
                      mean += row.p[j] * dp[j];
                    }
                    for (size_t j = 0; j < row.p.size(); ++j) {
                      double ds = row.p[j] * (dp[j] - mean) * shape.scale;
                      int64_t at = row.k + static_cast<int64_t>(j) * kk;
                      for (int64_t d = 0; d < depth; ++d) {
                        out.query.reals[row.q + d * qd] += ds * k.array->reals[at + d * kd];
                        out.key.reals[at + d * kd] += ds * q.array->reals[row.q + d * qd];
                      }
                    }
                  });
  return out;
}
