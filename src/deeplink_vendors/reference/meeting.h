/* SPDX-License-Identifier: Apache-2.0 */
// The shared memory of a group's ranks: a file that all of them have mapped, with a seat for each rank,
// two slots for its data, and a box for messages between each pair.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "chip.h"

namespace reference {
namespace {

constexpr size_t kSlot = size_t{1} << 20;
constexpr uint32_t kLetters = 64;  // maximum pending messages from one rank to another
constexpr int kSpins = 64;  // spins before a rank sleeps
constexpr int kNapMs = 50;  // interval after which a sleeping rank checks whether the others live
constexpr int kJoinNaps = 60'000 / kNapMs;

// ---- the shared structures

enum Kind : uint32_t { kAllReduce = 1, kBroadcast, kReduce, kAllGather, kReduceScatter };
const char* const kNames[] = {"nothing", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"};

struct Plan {  // the next operation of a rank, which must be equal for all
  uint32_t kind, dtype, reduction, peer;
  uint64_t count;
  bool operator==(const Plan&) const = default;
};
struct Seat {
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> turn;  // number of synchronizations that this rank has reached
  Plan plans[2];  // of this round and the previous one, which a neighbour may still read
};
struct Letter {
  uint64_t offset, bytes;
};
struct Box {
  std::atomic<uint32_t> sent, taken;
  Letter letters[kLetters];
};
struct Shared {
  std::atomic<uint32_t> bell, sleepers;
  std::atomic<uint32_t> aborted;  // by which rank, from 1
  std::atomic<uint64_t> end;  // of the file, position of the next message
};

struct Post {  // a message to write or to read
  DipuCollective call;
  bool sends, done;
};

struct Group {
  int device, rank, size, fd = -1;
  size_t bytes = 0;
  char* memory = nullptr;
  uint32_t turn = 0, round = 0;
  bool collecting = false;
  std::vector<Post> posts;

  size_t seats_at() const { return kPage; }
  size_t boxes_at() const { return seats_at() + sizeof(Seat) * static_cast<size_t>(size); }
  size_t slots_at() const {
    const size_t end = boxes_at() + sizeof(Box) * static_cast<size_t>(size * size);
    return pages(end);
  }
  Shared& shared() const { return *reinterpret_cast<Shared*>(memory); }
  Seat& seat(int r) const { return reinterpret_cast<Seat*>(memory + seats_at())[r]; }
  Box& box(int from, int to) const { return reinterpret_cast<Box*>(memory + boxes_at())[from * size + to]; }
  // two for each rank, used alternately: one round is read while the next is written
  char* slot(int r) const { return memory + slots_at() + kSlot * static_cast<size_t>(2 * r + (round & 1)); }
  Plan& plan(int r) const { return seat(r).plans[round & 1]; }

  ~Group() {
    if (memory != nullptr) munmap(memory, bytes);
    if (fd >= 0) close(fd);  // releases the lock that marks this process as alive
  }
};

Group& group_of(const DipuCollective* call) {
  return *static_cast<Group*>(call->communicator);
}

// ---- waiting

long futex(std::atomic<uint32_t>& word, int what, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), what, value, limit, nullptr, 0);
}
void ring(Group& g) {
  g.shared().bell.fetch_add(1);
  if (g.shared().sleepers.load() != 0) futex(g.shared().bell, FUTEX_WAKE, INT_MAX, nullptr);
}

// A process holds the lock of its byte in the file as long as it lives and has not left.
struct flock place(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}
bool gone(const Group& g, int rank) {
  if (rank == g.rank) return false;
  auto lock = place(rank);
  return fcntl(g.fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); i++) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

template <typename Condition>
std::vector<int> ranks_where(const Group& g, Condition holds) {
  std::vector<int> result;
  for (int r = 0; r < g.size; r++) {
    if (holds(r)) result.push_back(r);
  }
  return result;
}

// Waits until no rank is missing; `missing` returns the missing ranks.
int wait_for(Group& g, const std::function<std::vector<int>()>& missing, int naps = INT_MAX) {
  Shared& shared = g.shared();
  for (int spins = 0, slept = 0;; spins++) {
    const uint32_t bell = shared.bell.load();
    auto absent = missing();
    if (absent.empty()) return DIPU_OK;
    if (const uint32_t who = shared.aborted.load()) {
      return fail(DIPU_ERROR, "rank " + std::to_string(who - 1) + " aborted the group: " + list(absent) + " never joined this collective");
    }
    if (spins < kSpins) {
      sched_yield();
      continue;
    }
    timespec nap{0, kNapMs * 1'000'000L};
    shared.sleepers.fetch_add(1);
    const bool in_vain = futex(shared.bell, FUTEX_WAIT, bell, &nap) != 0 && errno == ETIMEDOUT;
    shared.sleepers.fetch_sub(1);
    if (!in_vain) continue;
    if (++slept > naps) return fail(DIPU_ERROR, list(absent) + " did not join the group");
    if (naps != INT_MAX) continue;  // while joining no rank is gone yet
    for (int r : absent) {
      if (gone(g, r) && !missing().empty()) {
        return fail(DIPU_ERROR, "rank " + std::to_string(r) + " has ended, or left the group");
      }
    }
  }
}

int meet(Group& g) {
  g.seat(g.rank).turn.store(++g.turn);
  ring(g);
  return wait_for(g, [&] {
    return ranks_where(g, [&](int r) { return static_cast<int32_t>(g.seat(r).turn.load() - g.turn) < 0; });
  });
}

std::string said(const Plan& plan) {
  return std::string(plan.kind <= kReduceScatter ? kNames[plan.kind] : "?") + " of " + std::to_string(plan.count) +
      " elements (type " + std::to_string(plan.dtype) + ", reduction " + std::to_string(plan.reduction) + ", root " +
      std::to_string(plan.peer) + ")";
}

// Synchronizes all ranks, and compares their plans.
int agree(Group& g, const Plan& own) {
  g.plan(g.rank) = own;
  if (int code = meet(g)) return code;
  for (int r = 0; r < g.size; r++) {
    if (g.plan(r) == own) continue;
    return fail(
        DIPU_ERROR, "the ranks do different things: rank " + std::to_string(g.rank) + " " + said(own) + ", rank " +
            std::to_string(r) + " " + said(g.plan(r)));
  }
  return DIPU_OK;
}

}  // namespace
}  // namespace reference
