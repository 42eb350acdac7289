// SPDX-License-Identifier: Apache-2.0
// The reference chip's communicator, for processes of one host. A rank writes its data into its slot, all
// ranks synchronize, and each reads what it needs; a message from one rank to another is asynchronous.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "chip.h"
#include "meeting.h"
#include "reduction.h"

namespace reference {
namespace {

constexpr size_t kSmall = 16 << 10;  // up to this size each rank reduces everything: one synchronization less

// ---- rounds: the part of a collective that fits into a slot

struct Round {
  Group& g;
  const DipuCollective& call;
  Type type;
  size_t start, count;  // elements
  const char* src;  // of this rank, on the host; from the beginning, as `dst`
  char* dst;

  std::vector<const char*> slots(size_t offset) const {
    std::vector<const char*> result;
    for (int r = 0; r < g.size; r++) result.push_back(g.slot(r) + offset * type.bytes);
    return result;
  }
  void give(size_t to, size_t from, size_t n) const {
    std::memcpy(g.slot(g.rank) + to * type.bytes, src + from * type.bytes, n * type.bytes);
  }
  void take(size_t to, const char* from, size_t n) const {
    std::memcpy(dst + to * type.bytes, from, n * type.bytes);
  }
  int reduced(size_t offset, size_t n, char* out) const {
    if (type.reduce(slots(offset), out, n, call.reduction)) return DIPU_OK;
    return fail(DIPU_ERROR, "no such reduction (" + std::to_string(call.reduction) + ") of the type number " + std::to_string(call.dtype));
  }
};
using Step = int (*)(const Round&);

// `parts`: number of parts in a slot. Each round writes, synchronizes, and reads.
int in_rounds(const DipuCollective* call, Kind kind, size_t parts, void (*give)(const Round&), Step take) {
  Group& g = group_of(call);
  const Type type = type_of(call->dtype);
  const bool reduces = kind == kAllReduce || kind == kReduce || kind == kReduceScatter;
  if (type.bytes == 0 || (reduces && type.reduce == nullptr)) {
    return fail(DIPU_ERROR, std::string("no ") + kNames[kind] + " of the type number " + std::to_string(call->dtype));
  }
  stream_synchronize(g.device, call->stream);
  const Plan plan{
      kind, static_cast<uint32_t>(call->dtype), reduces ? static_cast<uint32_t>(call->reduction) : 0u,
      kind == kBroadcast || kind == kReduce ? static_cast<uint32_t>(call->peer) : 0u, call->count};
  const auto at = [&](const void* p) { return p == nullptr ? nullptr : static_cast<char*>(host_address(g.device, p)); };
  const size_t most = kSlot / type.bytes / parts;
  size_t start = 0;
  do {
    const Round round{g, *call, type, start, std::min(most, call->count - start), at(call->src), at(call->dst)};
    g.round++;
    if (round.count > 0) give(round);
    if (int code = agree(g, plan)) return code;
    if (int code = round.count > 0 ? take(round) : DIPU_OK) return code;
    start += most;
  } while (start < call->count);
  return DIPU_OK;
}

void give_all(const Round& r) {
  r.give(0, r.start, r.count);
}
void give_as_root(const Round& r) {
  if (r.g.rank == r.call.peer) r.give(0, r.start, r.count);
}
void give_parts(const Round& r) {
  for (size_t to = 0; to < static_cast<size_t>(r.g.size); to++) r.give(to * r.count, to * r.call.count + r.start, r.count);
}

// For large data each rank reduces a share into its first slot, which all read after synchronizing again.
int take_sum(const Round& r) {
  char* first = r.g.slot(0);
  if (r.count * r.type.bytes <= kSmall) return r.reduced(0, r.count, r.dst + r.start * r.type.bytes);
  const size_t share = (r.count + static_cast<size_t>(r.g.size) - 1) / static_cast<size_t>(r.g.size);
  const size_t from = std::min(r.count, share * static_cast<size_t>(r.g.rank));
  int code = r.reduced(from, std::min(share, r.count - from), first + from * r.type.bytes);
  if (code == DIPU_OK) code = meet(r.g);
  if (code == DIPU_OK) r.take(r.start, first, r.count);
  return code;
}
int take_sum_as_root(const Round& r) {
  return r.g.rank == r.call.peer ? r.reduced(0, r.count, r.dst + r.start * r.type.bytes) : DIPU_OK;
}
int take_part(const Round& r) {
  return r.reduced(static_cast<size_t>(r.g.rank) * r.count, r.count, r.dst + r.start * r.type.bytes);
}
int take_from_root(const Round& r) {
  r.take(r.start, r.g.slot(r.call.peer), r.count);
  return DIPU_OK;
}
int take_from_all(const Round& r) {
  for (int from = 0; from < r.g.size; from++) {
    r.take(static_cast<size_t>(from) * r.call.count + r.start, r.g.slot(from), r.count);
  }
  return DIPU_OK;
}

// ---- messages: behind the slots in the file, each in its own pages

bool move(ssize_t (*step)(int, char*, size_t, off_t), int fd, char* data, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    const ssize_t went = step(fd, data, bytes, static_cast<off_t>(offset));
    if (went < 0 && errno == EINTR) continue;
    if (went <= 0) return false;
    data += went;
    bytes -= static_cast<size_t>(went);
    offset += static_cast<size_t>(went);
  }
  return true;
}
ssize_t put(int fd, char* data, size_t bytes, off_t offset) {
  return pwrite(fd, data, bytes, offset);
}
ssize_t get(int fd, char* data, size_t bytes, off_t offset) {
  return pread(fd, data, bytes, offset);
}

// Sends or receives if that is possible now.
int step(Group& g, Post& post) {
  const DipuCollective& call = post.call;
  const size_t bytes = call.count * type_of(call.dtype).bytes;
  Box& box = post.sends ? g.box(g.rank, call.peer) : g.box(call.peer, g.rank);
  const uint32_t sent = box.sent.load(), taken = box.taken.load();
  if (post.sends) {
    if (sent - taken == kLetters) return DIPU_OK;
    const uint64_t offset = g.shared().end.fetch_add(pages(bytes));
    if (!move(put, g.fd, static_cast<char*>(host_address(g.device, call.src)), bytes, offset)) {
      return fail(DIPU_ERROR, std::string("cannot send: ") + strerror(errno));
    }
    box.letters[sent % kLetters] = {offset, bytes};
    box.sent.store(sent + 1);
  } else {
    if (sent == taken) return DIPU_OK;
    const Letter letter = box.letters[taken % kLetters];
    if (letter.bytes != bytes) {
      return fail(
          DIPU_ERROR, "rank " + std::to_string(call.peer) + " sent " + std::to_string(letter.bytes) + " bytes, rank " +
              std::to_string(g.rank) + " receives " + std::to_string(bytes));
    }
    if (!move(get, g.fd, static_cast<char*>(host_address(g.device, call.dst)), bytes, letter.offset)) {
      return fail(DIPU_ERROR, std::string("cannot receive: ") + strerror(errno));
    }
    fallocate(g.fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, static_cast<off_t>(letter.offset),
              static_cast<off_t>(pages(bytes)));
    box.taken.store(taken + 1);
  }
  post.done = true;
  ring(g);
  return DIPU_OK;
}

int run_posts(Group& g) {
  std::vector<Post> posts = std::move(g.posts);
  g.posts.clear();
  int code = DIPU_OK;
  const int waited = wait_for(g, [&] {
    std::vector<int> open;
    for (auto& post : posts) {
      // messages of one pair keep their order
      const auto before = std::find_if(posts.begin(), posts.end(), [&](const Post& other) {
        return !other.done && other.sends == post.sends && other.call.peer == post.call.peer;
      });
      if (!post.done && &*before == &post && code == DIPU_OK) code = step(g, post);
      if (!post.done) open.push_back(post.call.peer);
    }
    return code == DIPU_OK ? open : std::vector<int>{};
  });
  return code == DIPU_OK ? waited : code;
}

int post(const DipuCollective* call, bool sends) {
  Group& g = group_of(call);
  if (type_of(call->dtype).bytes == 0) return fail(DIPU_ERROR, "no type number " + std::to_string(call->dtype));
  stream_synchronize(g.device, call->stream);
  g.posts.push_back({*call, sends, false});
  return g.collecting ? DIPU_OK : run_posts(g);
}

}  // namespace

// ---- the table's functions

// The file belongs to this process; the others open it by its descriptor there.
int group_id(DipuGroupId* id) {
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "dipu_group", 1u /* MFD_CLOEXEC */));
  if (fd < 0) return fail(DIPU_ERROR, std::string("cannot make the group's memory: ") + strerror(errno));
  snprintf(id->bytes, sizeof id->bytes, "%d %d", getpid(), fd);
  return DIPU_OK;
}

int group_create(int device, int rank, int size, const DipuGroupId* id, void** out) {
  int owner = 0, number = -1;
  if (sscanf(id->bytes, "%d %d", &owner, &number) != 2) return fail(DIPU_ERROR, "not an id of this chip's");
  auto g = std::make_unique<Group>();
  g->device = device;
  g->rank = rank;
  g->size = size;
  g->bytes = g->slots_at() + kSlot * 2 * static_cast<size_t>(size);
  const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(number);
  g->fd = open(path.c_str(), O_RDWR | O_CLOEXEC);  // opened again: the lock belongs to this descriptor
  void* memory = MAP_FAILED;
  auto lock = place(rank);
  if (g->fd >= 0 && ftruncate(g->fd, static_cast<off_t>(g->bytes)) == 0 && fcntl(g->fd, F_OFD_SETLK, &lock) == 0) {
    memory = mmap(nullptr, g->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
  }
  if (memory == MAP_FAILED) return fail(DIPU_ERROR, "the group's memory of process " + std::to_string(owner) + ": " + strerror(errno));
  g->memory = static_cast<char*>(memory);
  uint64_t nowhere = 0;
  g->shared().end.compare_exchange_strong(nowhere, g->bytes);
  g->seat(rank).joined.store(1);
  ring(*g);
  const int code = wait_for(*g, [&] {
    return ranks_where(*g, [&](int r) { return g->seat(r).joined.load() == 0; });
  }, kJoinNaps);
  if (owner == getpid()) close(number);
  if (code != DIPU_OK) return code;
  *out = g.release();
  return DIPU_OK;
}

int group_destroy(void* communicator) {
  auto* g = static_cast<Group*>(communicator);
  ring(*g);
  delete g;
  return DIPU_OK;
}

int group_abort(void* communicator) {
  auto& g = *static_cast<Group*>(communicator);
  uint32_t nobody = 0;
  g.shared().aborted.compare_exchange_strong(nobody, static_cast<uint32_t>(g.rank) + 1);
  ring(g);
  return DIPU_OK;
}

int group_query(void* communicator) {
  const uint32_t who = static_cast<Group*>(communicator)->shared().aborted.load();
  return who == 0 ? DIPU_OK : fail(DIPU_ERROR, "the group was aborted by rank " + std::to_string(who - 1));
}

int group_probe(void* communicator, int* source) {
  auto& g = *static_cast<Group*>(communicator);
  if (int code = group_query(communicator)) return code;
  for (int r = 0; r < g.size; r++) {
    Box& box = g.box(r, g.rank);
    if (box.sent.load() == box.taken.load()) continue;
    *source = r;
    return DIPU_OK;
  }
  return DIPU_NOT_READY;
}

int group_all_reduce(const DipuCollective* call) {
  return in_rounds(call, kAllReduce, 1, give_all, take_sum);
}
int group_reduce(const DipuCollective* call) {
  return in_rounds(call, kReduce, 1, give_all, take_sum_as_root);
}
int group_broadcast(const DipuCollective* call) {
  return in_rounds(call, kBroadcast, 1, give_as_root, take_from_root);
}
int group_all_gather(const DipuCollective* call) {
  return in_rounds(call, kAllGather, 1, give_all, take_from_all);
}
int group_reduce_scatter(const DipuCollective* call) {
  return in_rounds(call, kReduceScatter, static_cast<size_t>(group_of(call).size), give_parts, take_part);
}

int group_send(const DipuCollective* call) {
  return post(call, true);
}
int group_receive(const DipuCollective* call) {
  return post(call, false);
}
int group_begin(void* communicator) {
  static_cast<Group*>(communicator)->collecting = true;
  return DIPU_OK;
}
int group_end(void* communicator) {
  auto& g = *static_cast<Group*>(communicator);
  g.collecting = false;
  return run_posts(g);
}

}  // namespace reference
