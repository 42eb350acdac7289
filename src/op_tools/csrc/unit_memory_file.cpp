// A file that lies in memory (tmpfs), written by several threads: of `pwrite`, such a file system does one at a time, and
// its fresh pages take longer than the copy into them.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#endif

namespace py = pybind11;

namespace op_tools {
namespace {

#ifdef __linux__
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

constexpr uint64_t kPart = 1 << 20, kFirst = 64;  // bytes: of a part, and those that are written last

bool is_in_memory(int file) {
  struct statfs found {};
  return fstatfs(file, &found) == 0 && found.f_type == TMPFS_MAGIC;
}

// Bytes of a file from `start` on, where a record begins: its head comes last, so that a reader sees all of them or none.
class Mapped {
 public:
  Mapped(int file, const char* data, uint64_t start, uint64_t stop)
      : data_(data), start_(start), stop_(stop), base_(start / page() * page()) {
    struct stat found {};
    if (fstat(file, &found) != 0) fail(errno);
    if (static_cast<uint64_t>(found.st_size) < stop && ftruncate(file, static_cast<off_t>(stop)) != 0) fail(errno);
    void* made = mmap(nullptr, stop - base_, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(base_));
    if (made == MAP_FAILED) fail(errno);
    memory_ = static_cast<char*>(made);
  }
  Mapped(const Mapped&) = delete;
  ~Mapped() { munmap(memory_, stop_ - base_); }

  void put(unsigned threads) {
    std::vector<std::thread> others;
    try {
      for (unsigned one = 1; one < threads; one++) others.emplace_back([this] { put_parts(); });
    } catch (const std::system_error&) {  // no more of them: fewer do it
    }
    put_parts();
    for (std::thread& other : others) other.join();
    if (const int error = error_) fail(error == EFAULT ? ENOSPC : error);
    put_head();
  }

 private:
  static uint64_t page() {
    static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return size;
  }
  [[noreturn]] static void fail(int error) { throw std::system_error(error, std::generic_category()); }

  void put_parts() {
    while (error_ == 0) {
      const uint64_t from = base_ + next_.fetch_add(kPart), to = std::min(from + kPart, stop_);
      if (from >= stop_) return;
      char* place = memory_ + (from - base_);
      // a page that cannot be had is an error here, and would end the process in the copy
      while (error_ == 0 && madvise(place, to - from, MADV_POPULATE_WRITE) != 0)
        if (errno != EINTR && errno != EAGAIN) error_ = errno;
      const uint64_t first = std::max(from, std::min(start_ + kFirst, stop_));
      if (error_ == 0 && first < to) std::memcpy(memory_ + (first - base_), data_ + (first - start_), to - first);
    }
  }

  void put_head() {
    char* to = memory_ + (start_ - base_);
    const uint64_t size = std::min(kFirst, stop_ - start_), word = sizeof(uint32_t);
    std::memcpy(to + word, data_ + word, size - word);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(to, data_, word);
  }

  const char* const data_;
  const uint64_t start_, stop_, base_;
  char* memory_ = nullptr;
  std::atomic<uint64_t> next_{0};
  std::atomic<int> error_{0};
};

void put(int file, uintptr_t data, uint64_t start, uint64_t stop, unsigned threads) {
  Mapped(file, reinterpret_cast<const char*>(data), start, stop).put(threads);
}
#else
bool is_in_memory(int) { return false; }
void put(int, uintptr_t, uint64_t, uint64_t, unsigned) { throw std::system_error(ENOSYS, std::generic_category()); }
#endif

void put_or_raise(int file, uintptr_t data, uint64_t start, uint64_t stop, unsigned threads) {
  int failed = 0;
  {
    const py::gil_scoped_release free;
    try {
      put(file, data, start, stop, threads);
    } catch (const std::system_error& error) {
      failed = error.code().value();
    }
  }
  if (failed == 0) return;
  errno = failed;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

}  // namespace

void bind_memory_file(py::module_& m) {
  m.def("is_in_memory", &is_in_memory, "whether a file lies in memory");
  m.def("put_in_memory", &put_or_raise, "file, address, where in the file and up to where, threads; OSError");
}

}  // namespace op_tools
