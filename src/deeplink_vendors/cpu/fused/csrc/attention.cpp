// SPDX-License-Identifier: Apache-2.0
// Attention over packed sequences and over caches in blocks, on the dispatch key of the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "tensors.h"

namespace dlinfer {
namespace {

constexpr int64_t kLong = 16;  // number of queries and keys from which torch's own blocked kernel is faster

struct How {
  double scale;
  bool causal;
  int64_t window;
  double softcap;
  const float *slopes, *sinks;  // for each head, or null
};

// The keys and values of all sequences.
struct Stored {
  Tensor k, v;
  const Whole* table;  // null: packed sequences
  int64_t heads, block, columns;
};

// One query of one sequence.
struct Query {
  const char* q;  // its first head
  int64_t head_stride;
  int64_t token;  // index of its result
  int64_t row;  // of the block table
  int64_t start;  // of its sequence, where keys are packed
  int64_t keys;
  int64_t place;  // position of the query among its keys
};

int64_t token_axis(const Stored& s) { return s.table ? 1 : 0; }

Attend call_of(const Query& query, const Stored& s, const How& how, int64_t head, int64_t group) {
  const int64_t item = s.k.element_size(), axis = token_axis(s), begin = s.table ? 0 : query.start;
  Attend call{};
  call.q = query.q + head * group * query.head_stride * item;
  call.q_head = query.head_stride;
  call.k = address(s.k) + (head * s.k.stride(axis + 1) + begin * s.k.stride(axis)) * item;
  call.v = address(s.v) + (head * s.v.stride(axis + 1) + begin * s.v.stride(axis)) * item;
  call.k_token = s.k.stride(axis);
  call.v_token = s.v.stride(axis);
  call.block = s.table ? s.block : std::max<int64_t>(query.keys, 1);
  if (s.table) {
    call.k_block = s.k.stride(0);
    call.v_block = s.v.stride(0);
    call.table = s.table->row(query.row, s.columns);
    call.wide_table = s.table->wide;
  }
  call.last = query.place;
  call.to = how.causal ? std::min(query.keys, query.place + 1) : query.keys;
  call.from = how.window ? std::max<int64_t>(0, query.place - how.window + 1) : 0;
  if (how.window && !how.causal) call.to = std::min(call.to, query.place + how.window);
  call.group = group;
  call.size = s.k.size(axis + 2);
  call.value_size = s.v.size(axis + 2);
  call.scale = how.scale;
  call.softcap = how.softcap;
  call.slopes = how.slopes ? how.slopes + head * group : nullptr;
  return call;
}

// Runs every query over its keys; the keys are divided where there are fewer heads than threads.
void attend_all(const std::vector<Query>& queries, const Stored& s, const How& how, int64_t heads, const Tensor& out) {
  const int64_t group = heads / s.heads, size = s.k.size(-1), value_size = s.v.size(-1), item = out.element_size();
  const int64_t tasks = queries.size() * s.heads, threads = at::get_num_threads();
  const int64_t parts = tasks && tasks < threads ? (threads + tasks - 1) / tasks : 1;
  const int64_t room = group * (value_size + 2);
  const auto& k = kernels();
  const int type = kind(out);
  std::unique_ptr<float[]> results(new float[std::max<int64_t>(parts > 1 ? tasks * parts * room : 1, 1)]);
  // the parts of a task are consecutive: [parts, group, value_size], [parts, group], [parts, group]
  const auto rooms = [&](float* base, Attend& call, int64_t part) {
    call.out = base + part * group * value_size;
    call.largest = base + parts * group * value_size + part * group;
    call.total = call.largest + parts * group;
  };
  const auto finish = [&](float* base, int64_t task) {
    const int64_t first = task % s.heads * group;
    char* to = address(out) + (queries[task / s.heads].token * heads + first) * value_size * item;
    for (const auto g : c10::irange(group)) {
      float* largest = base + parts * group * value_size + g;
      k.merge[type](base + g * value_size, largest, largest + parts * group, parts, group, value_size, how.sinks ? how.sinks + first + g : nullptr,
                    to + g * value_size * item);
    }
  };
  at::parallel_for(0, tasks * parts, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> own(new float[group * size + room]);
    for (const auto i : c10::irange(begin, end)) {
      const int64_t task = i / parts, part = i % parts;
      Attend call = call_of(queries[task / s.heads], s, how, task % s.heads, group);
      float* base = parts > 1 ? results.get() + task * parts * room : own.get() + group * size;
      rooms(base, call, part);
      call.queries = own.get();
      const int64_t count = std::max<int64_t>(call.to - call.from, 0), share = (count + parts - 1) / parts;
      call.from += std::min(count, part * share);
      call.to = std::min(call.to, call.from + share);
      k.attend[type](call);
      if (parts == 1) finish(base, task);
    }
  });
  if (parts > 1)
    for (const auto task : c10::irange(tasks)) finish(results.get() + task * parts * room, task);
}

std::string not_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t dims, const Maybe& slopes, const Maybe& sinks,
                          const Maybe& scales) {
  if (scales) return "its kernel does not read a quantised cache";
  const std::string why = mixed({&q, &k, &v});
  if (!why.empty()) return why;
  if (q.dim() != 3 || k.dim() != dims || v.dim() != dims) return "its kernel requires queries [tokens, heads, size]";
  if (slopes && slopes->numel() != q.size(1)) return "its kernel requires a slope for each head";
  if (sinks && sinks->numel() != q.size(1)) return "its kernel requires a sink for each head";
  const int64_t shared = k.size(dims - 2);
  if (!shared || q.size(1) % shared || v.size(dims - 2) != shared || k.size(dims - 1) != q.size(2)) return "heads or sizes do not fit";
  return "";
}

std::string not_cache(const Tensor& k, const Tensor& v, const Tensor& table) {
  if ((k.size(3) > 1 && k.stride(3) != 1) || (v.size(3) > 1 && v.stride(3) != 1)) return "its kernel requires caches whose last dimension is dense";
  return table.dim() == 2 && k.size(1) == v.size(1) && k.size(0) == v.size(0) && k.size(1) ? "" : "the caches differ in blocks";
}

// Checks that the blocks of a row are in its table, and in the cache.
void check_blocks(const char* op, const Whole& table, int64_t columns, int64_t row, int64_t keys, int64_t block, int64_t blocks) {
  TORCH_CHECK_INDEX(keys <= columns * block, op, ": row ", row, " has ", keys, " keys, its block table room for ", columns * block);
  for (const auto i : c10::irange((keys + block - 1) / block)) {
    const int64_t found = table[row * columns + i];
    TORCH_CHECK_INDEX(found >= 0 && found < blocks, op, ": block ", found, " of row ", row, " is not in the cache, which has ", blocks);
  }
}

// Whether every token belongs to a sequence.
bool covers(const Whole& bounds, int64_t count, int64_t tokens) { return count && bounds[0] == 0 && bounds[count - 1] == tokens; }

Tensor room_for(const Tensor& q, int64_t value_size) { return at::empty({q.size(0), q.size(1), value_size}, q.options()); }

std::optional<Tensor> as_float(const Maybe& slopes) {
  return slopes ? std::optional<Tensor>(slopes->to(at::kFloat).contiguous()) : std::nullopt;
}

const float* numbers_of(const Maybe& t) { return t ? t->const_data_ptr<float>() : nullptr; }

// Whether torch's own kernel, which works in blocks of queries, supports the call and is faster.
bool blocked(const How& how, bool equal_sizes, int64_t queries, int64_t keys) {
  const bool simple = !how.window && how.softcap == 0 && !how.slopes && !how.sinks && equal_sizes;
  return simple && queries >= kLong && keys >= kLong && (!how.causal || queries <= keys);
}

// Runs torch's own kernel for sequences of one length: [count * length, heads, size]; the last query sees all keys.
void by_torch(const Tensor& q, const Tensor& k, const Tensor& v, int64_t count, const How& how, const Tensor& out) {
  const auto apart = [&](const Tensor& t) { return t.unflatten(0, {count, t.size(0) / count}).transpose(1, 2); };
  const int64_t queries = q.size(0) / count, keys = k.size(0) / count;
  Maybe seen;
  if (how.causal && queries < keys) seen = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril_(keys - queries);
  const Tensor done = at::scaled_dot_product_attention(apart(q), apart(k), apart(v), seen, 0.0, how.causal && !seen, how.scale,
                                                       q.size(1) != k.size(1));
  apart(out).copy_(done);
}

// Copies a sequence's part of a cache into contiguous memory.
Tensor gathered(const Tensor& cache, const Tensor& blocks, int64_t keys) {
  return cache.index_select(0, blocks).flatten(0, 1).slice(0, 0, keys);
}

Tensor paged_decode_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                              const Tensor& kv_lens, int64_t max_kv, double scale, int64_t window, double softcap,
                              const Maybe& slopes, const Maybe& sinks, const Maybe& k_scales, const Maybe& v_scales, const Maybe& k_zeros,
                              const Maybe& v_zeros) {
  const char* name = "paged_decode_attention";
  std::string why;
  if (!bypassed) {
    why = not_attention(q, k_cache, v_cache, 4, slopes, sinks, k_scales);
    if (why.empty()) why = not_cache(k_cache, v_cache, block_table);
  }
  if (bypassed || !why.empty())
    return otherwise<Tensor>(name, why, q, k_cache, v_cache, block_table, kv_lens, max_kv, scale, window, softcap,
                             slopes, sinks, k_scales, v_scales, k_zeros, v_zeros);
  const Whole table(block_table), lengths(kv_lens);
  const Tensor queries = dense(q);
  const Maybe bent = as_float(slopes), drained = as_float(sinks);
  const Stored stored{k_cache, v_cache, &table, k_cache.size(2), k_cache.size(1), block_table.size(1)};
  const int64_t item = q.element_size();
  std::vector<Query> all(q.size(0));
  for (const auto row : c10::irange(q.size(0))) {
    const int64_t keys = lengths[row];
    check_blocks(name, table, stored.columns, row, keys, stored.block, k_cache.size(0));
    all[row] = {address(queries) + row * queries.stride(0) * item, queries.stride(1), row, row, 0, keys, keys - 1};
  }
  Tensor out = room_for(q, v_cache.size(3));
  attend_all(all, stored, {scale, true, window, softcap, numbers_of(bent), numbers_of(drained)}, q.size(1), out);
  return out;
}

Tensor paged_prefill_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                               const Tensor& cu_q, const Tensor& kv_lens, int64_t max_q, int64_t max_kv, double scale,
                               bool causal, int64_t window, double softcap, const Maybe& slopes, const Maybe& sinks, const Maybe& k_scales,
                               const Maybe& v_scales, const Maybe& k_zeros, const Maybe& v_zeros) {
  const char* name = "paged_prefill_attention";
  std::string why;
  if (!bypassed) {
    why = not_attention(q, k_cache, v_cache, 4, slopes, sinks, k_scales);
    if (why.empty()) why = not_cache(k_cache, v_cache, block_table);
  }
  if (bypassed || !why.empty())
    return otherwise<Tensor>(name, why, q, k_cache, v_cache, block_table, cu_q, kv_lens, max_q, max_kv, scale, causal,
                             window, softcap, slopes, sinks, k_scales, v_scales, k_zeros, v_zeros);
  const Whole table(block_table), lengths(kv_lens), bounds(cu_q);
  const Tensor queries = dense(q);
  const Maybe bent = as_float(slopes), drained = as_float(sinks);
  const Stored stored{k_cache, v_cache, &table, k_cache.size(2), k_cache.size(1), block_table.size(1)};
  const How how{scale, causal, window, softcap, numbers_of(bent), numbers_of(drained)};
  const int64_t item = q.element_size();
  Tensor out = room_for(q, v_cache.size(3));
  if (!covers(bounds, cu_q.numel(), q.size(0))) out.zero_();
  std::vector<Query> all;
  for (const auto row : c10::irange(cu_q.numel() - 1)) {
    const int64_t keys = lengths[row], begin = bounds[row], end = bounds[row + 1];
    TORCH_CHECK_INDEX(begin >= 0 && begin <= end && end <= q.size(0), name, ": the bounds of sequence ", row, " are not in order");
    check_blocks(name, table, stored.columns, row, keys, stored.block, k_cache.size(0));
    if (blocked(how, q.size(2) == v_cache.size(3), end - begin, keys)) {
      const Tensor blocks = block_table[row].slice(0, 0, (keys + stored.block - 1) / stored.block);
      by_torch(queries.slice(0, begin, end), gathered(k_cache, blocks, keys), gathered(v_cache, blocks, keys), 1, how, out.slice(0, begin, end));
      continue;
    }
    for (const auto t : c10::irange(begin, end))
      all.push_back({address(queries) + t * queries.stride(0) * item, queries.stride(1), t, row, 0, keys, keys - (end - t)});
  }
  attend_all(all, stored, how, q.size(1), out);
  return out;
}

Tensor prefill_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q, const Tensor& cu_kv,
                         int64_t max_q, int64_t max_kv, double scale, bool causal, int64_t window, double softcap,
                         const Maybe& slopes, const Maybe& sinks) {
  const char* name = "prefill_attention";
  const std::string why = bypassed ? "" : not_attention(q, k, v, 3, slopes, sinks, std::nullopt);
  if (bypassed || !why.empty())
    return otherwise<Tensor>(name, why, q, k, v, cu_q, cu_kv, max_q, max_kv, scale, causal, window, softcap, slopes, sinks);
  const Whole q_bounds(cu_q), kv_bounds(cu_kv);
  TORCH_CHECK_INDEX(cu_q.numel() == cu_kv.numel() && cu_q.numel(), name, ": the bounds of queries and keys differ in number");
  const Tensor queries = dense(q);
  const Stored stored{dense(k), dense(v), nullptr, k.size(1), 0, 0};
  const Maybe bent = as_float(slopes), drained = as_float(sinks);
  const How how{scale, causal, window, softcap, numbers_of(bent), numbers_of(drained)};
  const int64_t item = q.element_size(), rows = cu_q.numel() - 1;
  Tensor out = room_for(q, v.size(2));
  if (!covers(q_bounds, cu_q.numel(), q.size(0))) out.zero_();
  const auto queries_of = [&](int64_t row) { return q_bounds[row + 1] - q_bounds[row]; };
  const auto keys_of = [&](int64_t row) { return kv_bounds[row + 1] - kv_bounds[row]; };
  for (const auto row : c10::irange(rows))
    TORCH_CHECK_INDEX(q_bounds[row] >= 0 && queries_of(row) >= 0 && q_bounds[row + 1] <= q.size(0) && kv_bounds[row] >= 0 &&
                          keys_of(row) >= 0 && kv_bounds[row + 1] <= k.size(0),
                      name, ": the bounds of sequence ", row, " are not in order");
  std::vector<Query> short_ones;
  for (int64_t row = 0, next; row < rows; row = next) {
    const int64_t begin = q_bounds[row], first = kv_bounds[row], keys = keys_of(row);
    next = row + 1;
    if (blocked(how, q.size(2) == v.size(2), queries_of(row), keys)) {
      // one call for sequences of one length
      while (next < rows && queries_of(next) == queries_of(row) && keys_of(next) == keys) next++;
      const int64_t end = q_bounds[next], last = kv_bounds[next];
      by_torch(queries.slice(0, begin, end), stored.k.slice(0, first, last), stored.v.slice(0, first, last), next - row, how,
               out.slice(0, begin, end));
      continue;
    }
    for (const auto t : c10::irange(begin, q_bounds[next]))
      short_ones.push_back({address(queries) + t * queries.stride(0) * item, queries.stride(1), t, 0, first, keys, keys - (q_bounds[next] - t)});
  }
  attend_all(short_ones, stored, how, q.size(1), out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(dlinfer, CPU, m) {
  m.impl("paged_decode_attention", TORCH_FN(paged_decode_attention));
  m.impl("paged_prefill_attention", TORCH_FN(paged_prefill_attention));
  m.impl("prefill_attention", TORCH_FN(prefill_attention));
}

}  // namespace dlinfer
