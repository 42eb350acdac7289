// A file that lies in memory (tmpfs), written by several threads: of `pwrite`, such a file system does one at a time, and
// its fresh pages take longer than the copy into them.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
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

constexpr uint64_t kPart = 1 << 19;   // bytes whose pages are asked for together
constexpr uint64_t kFirst = 64;       // bytes that are written last
constexpr uint64_t kEach = 1 << 20;   // bytes that are worth a thread

bool is_in_memory(int file) {
  struct statfs found {};
  return fstatfs(file, &found) == 0 && found.f_type == TMPFS_MAGIC;
}

// Bytes of a file from `start` on, where a record begins: its head comes last, so that a reader sees all of them or none.
class Mapped {
 public:
  Mapped(int file, const char* data, uint64_t start, uint64_t stop) : file_(file), data_(data), start_(start), stop_(stop) {
    struct stat found {};
    if (fstat(file, &found) != 0) fail(errno);
    if (static_cast<uint64_t>(found.st_size) < stop && ftruncate(file, static_cast<off_t>(stop)) != 0) fail(errno);
  }

  void put(uint64_t threads) {
    const uint64_t base = start_ / page() * page();
    threads = std::clamp<uint64_t>((stop_ - base) / kEach, 1, threads);
    const uint64_t each = ((stop_ - base) / threads / page() + 1) * page();
    std::vector<std::thread> others;
    uint64_t from = base + each;
    try {
      for (; from < stop_; from += each) others.emplace_back([this, from, each] { put(from, std::min(from + each, stop_)); });
    } catch (const std::system_error&) {  // no more of them: this one does the rest
    }
    put(base, std::min(base + each, stop_));
    if (from < stop_) put(from, stop_);
    for (std::thread& other : others) other.join();
    if (const int error = error_) fail(error == EFAULT ? ENOSPC : error);
    const size_t head = std::min(kFirst, stop_ - start_);
    if (pwrite(file_, data_, head, static_cast<off_t>(start_)) != static_cast<ssize_t>(head)) fail(errno);
  }

 private:
  static uint64_t page() {
    static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return size;
  }
  [[noreturn]] static void fail(int error) { throw std::system_error(error, std::generic_category()); }

  void put(uint64_t from, uint64_t to) {
    void* made = mmap(nullptr, to - from, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(from));
    if (made == MAP_FAILED) {
      error_ = errno;
      return;
    }
    auto* memory = static_cast<char*>(made);
    for (uint64_t at = from; at < to && error_ == 0; at += kPart) put_part(memory + (at - from), at, std::min(at + kPart, to));
    munmap(memory, to - from);
  }

  void put_part(char* memory, uint64_t from, uint64_t to) {
    // a page that cannot be had is an error here, and would end the process in the copy
    while (madvise(memory, to - from, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      error_ = errno;
      return;
    }
    const uint64_t first = std::max(from, std::min(start_ + kFirst, stop_));
    if (first < to) std::memcpy(memory + (first - from), data_ + (first - start_), to - first);
  }

  const int file_;
  const char* const data_;
  const uint64_t start_, stop_;
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
