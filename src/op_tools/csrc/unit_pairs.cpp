// The table of pairs that a vendor's kernel measures, and whether lists of tensors are alike: see op_tools/device_kernel.py and
// device_lists.py, which do the same where there is no native part.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace op_tools {
namespace {

using Kind = std::array<int64_t, 4>;  // that of the values, and three numbers of the type that counts
using Tensors = std::vector<at::Tensor>;

struct Pairs {
  at::Tensor rows;              // on the host
  std::vector<int64_t> pieces;  // of each pair
  Tensors held;                 // what they are rows of, where that is a copy
};

Pairs rows_of(const Tensors& mine, const Tensors& theirs, const std::vector<size_t>& which, const std::vector<Kind>& kinds, int64_t most) {
  Pairs made;
  std::vector<int64_t> rows;
  const auto dense = [&](const at::Tensor& tensor) {
    if (tensor.is_contiguous()) return tensor;
    made.held.push_back(tensor.contiguous());
    return made.held.back();
  };
  for (size_t at = 0; at < mine.size(); at++) {
    const at::Tensor own = dense(mine[at]), right = dense(theirs[at]);
    const Kind& kind = kinds.at(which[at]);
    const auto first = reinterpret_cast<int64_t>(own.const_data_ptr()), second = reinterpret_cast<int64_t>(right.const_data_ptr());
    const int64_t count = own.numel(), width = own.element_size();
    int64_t pieces = 0;
    for (int64_t begin = 0; begin < count; begin += most, pieces++) {
      rows.insert(rows.end(), {first + width * begin, second + 8 * begin, std::min(most, count - begin)});
      rows.insert(rows.end(), kind.begin(), kind.end());
    }
    made.pieces.push_back(pieces);
  }
  const auto length = static_cast<int64_t>(rows.size());
  made.rows = at::empty({length / 7, 7}, at::kLong);
  std::copy(rows.begin(), rows.end(), made.rows.mutable_data_ptr<int64_t>());
  return made;
}

// Whether tensors are of one type, on one device and plain, none twice in its list, and none is in a graph but leaves, where those may be.
bool alike(const std::vector<Tensors>& lists, bool leaves) {
  const at::Tensor* first = nullptr;
  std::unordered_set<const void*> seen;
  for (const Tensors& list : lists) {
    seen.clear();
    for (const at::Tensor& tensor : list) {
      if (first == nullptr) first = &tensor;
      if (tensor.layout() != at::kStrided || tensor.is_inference() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return false;
      if (tensor.scalar_type() != first->scalar_type() || tensor.device() != first->device()) return false;
      if (tensor.requires_grad() && !(leaves && tensor.is_leaf())) return false;
    }
  }
  return true;
}

}  // namespace

void bind_pairs(py::module_& m) {
  m.def("alike", &alike);
  m.def(
      "rows_of_pairs",
      [](const Tensors& mine, const Tensors& theirs, const std::vector<size_t>& which, const std::vector<Kind>& kinds, int64_t most) {
        Pairs made = rows_of(mine, theirs, which, kinds, most);
        return std::make_tuple(made.rows, made.pieces, made.held);
      },
      "rows, pieces of each pair, copies: of results, references, which kind each is, the kinds, and the most of a piece");
}

}  // namespace op_tools
