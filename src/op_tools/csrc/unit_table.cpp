// The table of what a device reduces: values one after the other, and those with gaps, where they are or as a copy.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "batch.h"
#include "hash.h"

namespace op_tools {
namespace {

constexpr int kHashOnly = 16, kGaps = 32, kFirst = 8;  // of kinds: see op_tools/reducing.py

}  // namespace

// The values in the order of memory, each once; how often each is: as `snapshot.ordered`.
std::unique_ptr<Batch::Gaps> Batch::gaps_in(const at::Tensor& tensor, int64_t& times) {
  auto made = std::make_unique<Gaps>(Gaps{tensor.scalar_type(), tensor.key_set(), tensor.storage_offset(), {}});
  for (int64_t dim = 0; dim < tensor.dim(); dim++) {
    const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
    if (size > 1 && stride == 0) times *= size;
    else if (size != 1) put_in_order(made->dims, stride, size);
  }
  return made;
}

at::Tensor Batch::without(const Gaps& gaps, const c10::Storage& storage) {
  AtWork guard;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard modes(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (const auto& [stride, size] : gaps.dims) sizes.push_back(size), strides.push_back(stride);
  auto view = c10::make_intrusive<at::TensorImpl>(c10::Storage(storage), gaps.keys, c10::scalarTypeToTypeMeta(gaps.type));
  view->set_sizes_and_strides(sizes, strides, gaps.offset);
  at::Tensor copy = at::empty(sizes, at::TensorOptions().dtype(gaps.type).device(storage.device()));
  return copy.copy_(at::Tensor(std::move(view)), true);
}

// For a vendor that does not read them.
void Batch::close_gaps() {
  for (auto& piece : waiting_) {
    if (piece.rows == 0 || piece.gaps == nullptr) continue;
    const at::Tensor copy = without(*std::exchange(piece.gaps, nullptr), piece.storage);
    piece.storage = copy.storage();
    piece.data = static_cast<const uint8_t*>(copy.const_data_ptr());
  }
}

void Batch::tabulate(int64_t* row, int64_t* gaps) const {
  const auto add = [&](uint64_t address, uint64_t size, uint64_t kind) {
    row[0] = static_cast<int64_t>(address), row[1] = static_cast<int64_t>(size), row[2] = static_cast<int64_t>(kind);
    row += kGiven;
  };
  const int more = hash_only_ ? kHashOnly : 0;
  for (const auto& piece : waiting_) {
    if (piece.rows == 0) continue;
    const uint64_t width = width_of(piece.kind), size = piece.count * width, whole = size / 8 * 8;
    const auto from = reinterpret_cast<uint64_t>(piece.gaps ? reinterpret_cast<const uint8_t*>(gaps) : piece.data);
    const auto kind = static_cast<uint64_t>(static_cast<int>(piece.kind) + more);
    const auto part = [&](uint64_t at, uint64_t bytes) {
      if (piece.gaps) add(from, bytes, kind + kGaps + (at / width << kFirst));
      else add(from + at, bytes, kind);
    };
    for (uint64_t at = 0; at < whole; at += kPiece) part(at, std::min<uint64_t>(kPiece, whole - at));
    if (size % 8) part(whole, size % 8);
    if (piece.gaps) gaps = described(gaps, piece);
  }
}

// Where its values are, the innermost dimension first; a complex number is two.
int64_t* Batch::described(int64_t* to, const Piece& piece) {
  const auto parts = static_cast<int64_t>(c10::elementSize(piece.gaps->type) / width_of(piece.kind));
  int64_t* at = to + 2;
  if (parts > 1) *at++ = parts, *at++ = 1;
  const auto& dims = piece.gaps->dims;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) *at++ = dim->second, *at++ = dim->first * parts;
  to[0] = reinterpret_cast<int64_t>(piece.data);
  to[1] = (at - to) / 2 - 1;
  return to + kGapsWords;
}

}  // namespace op_tools
