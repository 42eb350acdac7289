/* SPDX-License-Identifier: Apache-2.0 */
// The 64-bit hash of op_tools/tensors/statistics.py, word for word; see there for its definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace op_tools {

constexpr uint64_t kP1 = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kP2 = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kP3 = 0x94D049BB133111EBull;
constexpr size_t kBlock = 16384;  // words

inline uint64_t avalanche(uint64_t value) {
  value = (value ^ (value >> 30)) * kP2;
  value = (value ^ (value >> 27)) * kP3;
  return value ^ (value >> 31);
}

// Of the words of a block: their products with the keys, and those of their upper halves.
struct Sums {
  uint64_t words = 0, upper = 0;
};

const uint64_t*
hash_keys();  // kBlock of them, on the boundary of a cache line; then their upper halves
Sums hash_sums(const uint8_t* data, const uint64_t* key, size_t words);
uint64_t hash_bytes(const uint8_t* data, size_t size);

class Hash {
 public:
  explicit Hash(size_t size) : mixed_(size * kP1 + kP2) {}

  void block(Sums found) {
    mixed_ = (mixed_ ^ found.words) * kP1 + ((found.upper << 29) | (found.upper >> 35));
    mixed_ ^= mixed_ >> 32;
  }

  // With the bytes behind the last whole word.
  uint64_t end(const uint8_t* tail, size_t size) {
    if (size) {
      uint8_t word[8] = {};
      std::memcpy(word, tail, size);
      block(hash_sums(word, hash_keys(), 1));
    }
    return avalanche(mixed_);
  }

 private:
  uint64_t mixed_;
};

}  // namespace op_tools
