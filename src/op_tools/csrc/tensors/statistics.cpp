// SPDX-License-Identifier: Apache-2.0
// Statistics and hash of values in host memory, chunk by chunk, each read once from memory.
#include "statistics.h"

#include <cstdlib>

#include "value_loops.h"

namespace op_tools {

constexpr size_t kChunk = 2048;  // words that are hashed and measured while they are in the cache

const uint64_t* hash_keys() {
  static const uint64_t* const made = [] {
    auto* all = static_cast<uint64_t*>(std::aligned_alloc(64, kBlock * sizeof(uint64_t)));
    for (size_t i = 0; i < kBlock; i++) all[i] = avalanche((i + 1) * kP1) | 1;
    return all;
  }();
  return made;
}

Sums hash_sums(const uint8_t* data, const uint64_t* key, size_t words) {
  Sums found;
  OP_TOOLS_LOOP(add_sums(found, data, key, words));
  return found;
}

uint64_t hash_bytes(const uint8_t* data, size_t size) {
  Hash hash(size);
  const size_t words = size / 8;
  for (size_t start = 0; start < words; start += kBlock)
    hash.block(hash_sums(data + 8 * start, hash_keys(), std::min(kBlock, words - start)));
  return hash.end(data + 8 * words, size % 8);
}

uint64_t hash_of_repeated(uint64_t hash, int64_t times) {
  return times == 1 ? hash : avalanche(hash + static_cast<uint64_t>(times) * kP1);
}

void Measured::merge(const int64_t* row) {
  for (size_t at = 0; at < kFieldCount; at++) {
    if (row[kFinite] == 0 && kMerges[at] != Merge::count) continue;  // it means nothing
    const double value = std::bit_cast<double>(row[at]);
    switch (kMerges[at]) {
      case Merge::least:
        whole ? fields[at] = std::min(fields[at], row[at])
              : (set(at, std::min(real(at), value)), 0);
        break;
      case Merge::most:
        whole ? fields[at] = std::max(fields[at], row[at])
              : (set(at, std::max(real(at), value)), 0);
        break;
      case Merge::total: set(at, real(at) + value); break;
      case Merge::count: fields[at] += row[at]; break;
    }
  }
}

void widen(float* to, const uint16_t* from, size_t count, bool half) {
  OP_TOOLS_LOOP(widen(to, from, count, half));
}

// Adds the fields of a chunk of values; T: their type, or uint16_t of those that are widened.
template <typename T>
static void add_chunk(Measured& to, const uint8_t* data, size_t count, bool) {
  OP_TOOLS_LOOP(add_fields(to, reinterpret_cast<const T*>(data), count));
}
template <>
void add_chunk<uint16_t>(Measured& to, const uint8_t* data, size_t count, bool half) {
  alignas(64) float wide[4 * kChunk];
  widen(wide, reinterpret_cast<const uint16_t*>(data), count, half);
  OP_TOOLS_LOOP(add_fields(to, wide, count));
}

template <typename T>
static Measured measure_as(const uint8_t* data, size_t count, bool half, bool hashes) {
  constexpr size_t each = 8 / sizeof(T);
  Measured found(std::is_integral_v<T> && !std::is_same_v<T, uint16_t>);
  const size_t size = sizeof(T) * count, words = size / 8;
  Hash hash(size);
  for (size_t start = 0; start < words; start += kBlock) {
    const size_t end = std::min(words, start + kBlock);
    Sums sums;
    for (size_t at = start; at < end; at += kChunk) {
      const size_t some = std::min(kChunk, end - at);
      if (hashes) OP_TOOLS_LOOP(add_sums(sums, data + 8 * at, hash_keys() + (at - start), some));
      add_chunk<T>(found, data + 8 * at, each * some, half);
    }
    hash.block(sums);
  }
  if (count % each != 0) add_chunk<T>(found, data + 8 * words, count % each, half);
  found.hash = hash.end(data + 8 * words, size % 8);
  return found;
}

static Measured measure_values(const uint8_t* data, size_t count, Kind kind, bool hashes) {
  switch (kind) {
    case Kind::float32: return measure_as<float>(data, count, false, hashes);
    case Kind::float64: return measure_as<double>(data, count, false, hashes);
    case Kind::bfloat16: return measure_as<uint16_t>(data, count, false, hashes);
    case Kind::float16: return measure_as<uint16_t>(data, count, true, hashes);
    case Kind::int64: return measure_as<int64_t>(data, count, false, hashes);
    case Kind::int32: return measure_as<int32_t>(data, count, false, hashes);
    case Kind::int16: return measure_as<int16_t>(data, count, false, hashes);
    case Kind::int8: return measure_as<int8_t>(data, count, false, hashes);
    default: return measure_as<uint8_t>(data, count, false, hashes);
  }
}

Measured measure(const uint8_t* data, size_t count, Kind kind, Reads reads, int64_t times) {
  Measured found;
  if (reads == Reads::hash) found.hash = hash_bytes(data, count * width_of(kind));
  else found = measure_values(data, count, kind, reads == Reads::everything);
  found.hash = hash_of_repeated(found.hash, times);
  found.values = static_cast<int64_t>(count), found.times = times;
  return found;
}

}  // namespace op_tools
