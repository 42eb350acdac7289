// SPDX-License-Identifier: Apache-2.0
#include "device_reducer.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hash.h"

namespace op_tools {
namespace {

// Of the table: see op_tools/tensors/device_reduction.py.
constexpr auto kFlush = std::chrono::milliseconds(20);  // between copies of a few results
constexpr int64_t kPiece = 8 * kBlock;                  // bytes of a row
constexpr int kHashOnly = 16, kGaps = 32, kNoHash = 64, kFirst = 8;

int64_t rows_of(int64_t size) { return (size / 8 * 8 + kPiece - 1) / kPiece + (size % 8 != 0); }

// A dense copy, made below autograd and without the modes and observers of the program.
at::Tensor dense_copy(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const at::DisableRecordFunctionGuard unobserved;
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (int64_t dim = 0; dim < tensor.dim(); dim++)
    if (tensor.stride(dim) != 0 && tensor.size(dim) != 1)
      sizes.push_back(tensor.size(dim)), strides.push_back(tensor.stride(dim));
  // in the order of memory
  c10::SmallVector<size_t, 8> order(sizes.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  c10::SmallVector<int64_t, 8> own_sizes, own_strides;
  for (const size_t at : order) own_sizes.push_back(sizes[at]), own_strides.push_back(strides[at]);
  return at::clone(tensor.as_strided(own_sizes, own_strides), at::MemoryFormat::Contiguous);
}

}  // namespace

DeviceReducer::DeviceReducer(Reads reads, py::function starter, py::function launcher,
                             py::function problem)
    : reads_(reads),
      starter_(std::move(starter)),
      problem_(std::move(problem)),
      launcher_(std::move(launcher)) {}

DeviceReducer::~DeviceReducer() {
  for (auto& group : pending_) try {  // the device may still read a table
      if (group.native.table.defined()) launcher_.wait(group.native);
    } catch (const std::exception&) {
    }
  py::gil_scoped_acquire gil;
  pending_.clear();
  for (auto& [type, start] : starters_) Py_XDECREF(start);
  starter_ = py::function();
  problem_ = py::function();
  launcher_.close();
}

PyObject* DeviceReducer::starter_of(c10::DeviceType type) {
  {
    std::lock_guard lock(starters_lock_);
    const auto found = starters_.find(type);
    if (found != starters_.end()) return found->second;
  }
  PyObject* made = nullptr;
  {  // without the lock: Python may wait for this thread
    py::gil_scoped_acquire gil;
    const at::DisableRecordFunctionGuard unobserved;
    py::object found = starter_(c10::DeviceTypeName(type, true));
    if (!found.is_none()) made = found.release().ptr();
  }
  std::lock_guard lock(starters_lock_);
  return starters_.try_emplace(type, made).first->second;
}

bool DeviceReducer::accepts(const at::Tensor& tensor) {
  return !tensor.is_cpu() && starter_of(tensor.device().type()) != nullptr;
}

int64_t DeviceReducer::Batch::add(const at::Tensor& tensor, Kind kind, int parts) {
  pieces_.push_back({tensor, Layout(tensor), kind, parts, reducer_.next_++});
  return pieces_.back().number;
}

void DeviceReducer::Batch::launch() {
  for (size_t from = 0; from < pieces_.size();) {  // one launch for each device: mostly one
    size_t to = from + 1;
    while (to < pieces_.size() && pieces_[to].tensor.device() == pieces_[from].tensor.device())
      to++;
    reducer_.launch(c10::ArrayRef<Piece>(pieces_.data() + from, to - from));
    from = to;
  }
  pieces_.clear();
}

void DeviceReducer::launch(c10::ArrayRef<Piece> given) {
  c10::SmallVector<Piece, 4> pieces(given.begin(), given.end());
  const c10::Device device = pieces[0].tensor.device();
  LaunchedBatch group;
  for (const auto& piece : pieces)
    group.asked.push_back({piece.number, piece.layout.times, piece.values(), piece.kind});
  try {
    const c10::DeviceGuard on(device);
    launch_on_stream(group, pieces, c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  } catch (const std::exception& error) {
    group.failed = error.what();
  }
  if (!group.failed.empty()) {
    py::gil_scoped_acquire gil;
    problem_(group.failed);
  }
  std::lock_guard lock(lock_);
  pending_.push_back(std::move(group));
  launched_++;
}

void DeviceReducer::launch_on_stream(LaunchedBatch& to, c10::SmallVector<Piece, 4>& pieces,
                                     const c10::Stream& stream) {
  const bool native = launcher_.has(stream), reads_gaps = native && launcher_.reads_gaps(stream);
  int64_t rows = 0, gaps = 0;
  for (auto& piece : pieces) {
    const bool many = static_cast<int64_t>(piece.layout.dims.size()) + 2 >
                      kDims;  // a run and the parts of a complex number, too
    if (!piece.layout.is_contiguous() && (!reads_gaps || many)) {
      const int64_t times = piece.layout.times;
      piece.tensor = dense_copy(piece.tensor);
      piece.layout = Layout(piece.tensor);
      piece.layout.times = times;
    }
    rows += rows_of(static_cast<int64_t>(piece.values() * width_of(piece.kind)));
    gaps += !piece.layout.is_contiguous();
  }
  if (rows == 0) return;
  if (native) {
    GivenTensors given;
    at::Tensor table;
    if (!give(given, pieces)) {
      table = at::empty({kGiven * rows + kGapsWords * gaps},
                        at::TensorOptions().dtype(at::kLong).pinned_memory(true));
      auto* start = table.data_ptr<int64_t>();
      tabulate(start, start + kGiven * rows, pieces);
    }
    to.native = launcher_.launch(stream, rows, given, table);
    if (to.native.chunk != nullptr) return;
  }
  std::vector<int64_t> table(static_cast<size_t>(kGiven * rows));
  for (auto& piece : pieces)
    TORCH_CHECK(piece.layout.is_contiguous() || !native, "a graph is being captured");
  tabulate(table.data(), nullptr, pieces);
  py::gil_scoped_acquire gil;
  const at::DisableRecordFunctionGuard unobserved;
  const at::Tensor given = at::from_blob(table.data(), {rows, kGiven}, at::kLong);
  to.read = py::handle(starter_of(stream.device_type()))(
      given, py::reinterpret_steal<py::object>(THPDevice_New(stream.device())));
}

uint64_t DeviceReducer::kind_of(const Piece& piece) const {
  const int flag = reads_ == Reads::hash ? kHashOnly : reads_ == Reads::fields ? kNoHash : 0;
  return static_cast<uint64_t>(static_cast<int>(piece.kind) + flag);
}

// The tensors without a table, if they are few and contiguous.
bool DeviceReducer::give(GivenTensors& to, c10::ArrayRef<Piece> pieces) const {
  if (static_cast<int64_t>(pieces.size()) > GivenTensors::kMost) return false;
  int64_t row = 0;
  for (const auto& piece : pieces) {
    if (!piece.layout.is_contiguous()) return to.count = 0, false;
    const auto size = static_cast<int64_t>(piece.values() * width_of(piece.kind));
    int64_t* const tensor = to.tensors[to.count];
    tensor[0] = static_cast<int64_t>(reinterpret_cast<uint64_t>(piece.tensor.const_data_ptr()));
    tensor[1] = size, tensor[2] = static_cast<int64_t>(kind_of(piece));
    to.first_row[to.count++] = row;
    row += rows_of(size);
  }
  to.first_row[to.count] = row;
  return true;
}

void DeviceReducer::tabulate(int64_t* row, int64_t* gaps, c10::ArrayRef<Piece> pieces) const {
  const auto add = [&](uint64_t address, uint64_t size, uint64_t kind) {
    row[0] = static_cast<int64_t>(address), row[1] = static_cast<int64_t>(size),
    row[2] = static_cast<int64_t>(kind);
    row += kGiven;
  };
  for (const auto& piece : pieces) {
    const uint64_t width = width_of(piece.kind), size = piece.values() * width,
                   whole = size / 8 * 8;
    const uint64_t kind = kind_of(piece);
    const auto data = reinterpret_cast<uint64_t>(piece.tensor.const_data_ptr());
    const bool dense = piece.layout.is_contiguous();
    const auto part = [&](uint64_t at, uint64_t bytes) {
      if (dense) add(data + at, bytes, kind);
      else add(reinterpret_cast<uint64_t>(gaps), bytes, kind + kGaps + (at / width << kFirst));
    };
    for (uint64_t at = 0; at < whole; at += kPiece)
      part(at, std::min<uint64_t>(kPiece, whole - at));
    if (size % 8 != 0) part(whole, size % 8);
    if (dense) continue;
    int64_t* at = gaps + 2;  // the innermost dimension first
    if (piece.parts > 1) *at++ = piece.parts, *at++ = 1;
    if (piece.layout.run > 1) *at++ = static_cast<int64_t>(piece.layout.run), *at++ = piece.parts;
    for (auto dim = piece.layout.dims.rbegin(); dim != piece.layout.dims.rend(); ++dim)
      *at++ = dim->second, *at++ = dim->first * piece.parts;
    gaps[0] = static_cast<int64_t>(data);
    gaps[1] = (at - gaps) / 2 - 1;
    gaps += kGapsWords;
  }
}

void DeviceReducer::read(bool wait) {
  while (true) {
    LaunchedBatch group;
    {
      std::lock_guard lock(lock_);
      if (pending_.empty()) return;
      const Launched& native = pending_.front().native;
      if (!wait && native.chunk != nullptr && !launcher_.is_done(native)) {
        const auto now = std::chrono::steady_clock::now();
        if (now - flushed_ > kFlush) launcher_.flush(), flushed_ = now;
        return;
      }
      group = std::move(pending_.front());
      pending_.pop_front();
    }
    finish(group);
    finished_++;
  }
}

void DeviceReducer::finish(LaunchedBatch& group) {
  at::Tensor values;
  try {
    if (group.native.chunk != nullptr) launcher_.wait(group.native);
  } catch (const std::exception& error) {
    group.failed = error.what();
  }
  if (group.read) {
    py::gil_scoped_acquire gil;
    try {
      if (group.failed.empty()) values = group.read().cast<at::Tensor>().contiguous();
    } catch (const std::exception& error) {
      group.failed = error.what();
      problem_(group.failed);
    }
    group.read = py::object();
  }
  const int64_t* row = values.defined() ? values.const_data_ptr<int64_t>() : nullptr;
  if (group.native.chunk != nullptr && group.failed.empty()) row = group.native.results();
  {
    std::lock_guard lock(lock_);
    for (const auto& asked : group.asked) {
      if (group.failed.empty()) row = merge_rows(asked, row, found_[asked.number]);
      else failed_[asked.number] = group.failed;
    }
  }
}

// The statistics of one tensor from its rows; returns the row after them.
const int64_t* DeviceReducer::merge_rows(const Asked& asked, const int64_t* row,
                                         Measured& to) const {
  const size_t size = asked.values * width_of(asked.kind);
  Measured found(asked.kind >= Kind::int64);
  Hash hash(size);
  const int64_t* const end = row + kFields * rows_of(static_cast<int64_t>(size));
  for (; row < end; row += kFields) {
    hash.block({static_cast<uint64_t>(row[0]), static_cast<uint64_t>(row[1])});
    if (reads_ != Reads::hash) found.merge(row + 2);
  }
  found.hash = hash_of_repeated(hash.end(nullptr, 0), asked.times);
  found.values = static_cast<int64_t>(asked.values), found.times = asked.times;
  to = found;
  return end;
}

std::optional<Measured> DeviceReducer::take(int64_t number, std::string& problem) {
  std::lock_guard lock(lock_);
  const auto found = found_.find(number);
  if (found != found_.end()) {
    const Measured made = found->second;
    found_.erase(found);
    return made;
  }
  problem = "not read";
  const auto failed = failed_.find(number);
  if (failed != failed_.end()) problem = failed->second, failed_.erase(failed);
  return std::nullopt;
}

}  // namespace op_tools
