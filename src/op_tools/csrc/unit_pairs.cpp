// The table of pairs that a vendor's kernel measures, whether lists of tensors are alike, and what is asked of a call's tensors: see
// op_tools/device_kernel.py, device_lists.py, reference.py, memory.py and device_kinds.py, which do the same without a native part.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
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

// Each tensor of a list of nothing else, until one says false.
template <typename Each>
bool all_of(const py::list& tensors, Each each) {
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(tensors.ptr()); at++)
    if (!each(THPVariable_Unpack(PyList_GET_ITEM(tensors.ptr(), at)))) return false;
  return true;
}

bool are_plain(const py::list& tensors) {
  return all_of(tensors, [](const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized(); });
}

py::list versions_of(const py::list& tensors, int64_t uncounted) {
  py::list made;
  all_of(tensors, [&](const at::Tensor& tensor) {
    made.append(tensor.is_inference() ? uncounted : static_cast<int64_t>(tensor._version()));
    return true;
  });
  return made;
}

// How many bytes tensors have that lie on one accelerator (a single number may lie elsewhere) and are of types that float64 holds, some
// of them floating; -1: they are others.
int64_t size_to_widen(const py::list& tensors) {
  int64_t size = 0;
  bool widens = false;
  std::optional<at::Device> place;
  all_of(tensors, [&](const at::Tensor& tensor) {
    if (!place && !tensor.device().is_cpu()) place = tensor.device();
    return !place;
  });
  const bool fit = place && all_of(tensors, [&](const at::Tensor& tensor) {
    if (tensor.device() != *place && tensor.dim() > 0) return false;
    if (tensor.is_complex() || tensor.scalar_type() == at::kDouble) return false;
    widens = widens || tensor.is_floating_point();
    size += static_cast<int64_t>(tensor.nbytes());
    return true;
  });
  return fit && widens ? size : -1;
}

// Whether all that has elements among the one lies in the memory of some of the others.
bool lie_in(const py::list& made, const py::list& given) {
  bool any = false;
  const auto memory = [](const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; };
  const bool inside = all_of(made, [&](const at::Tensor& tensor) {
    if (tensor.numel() == 0) return true;
    any = true;
    return memory(tensor) != nullptr && !all_of(given, [&](const at::Tensor& other) { return memory(other) != memory(tensor); });
  });
  return inside && any;
}

// Shapes and types of tensors, in bytes.
py::bytes shapes_of(const py::list& tensors) {
  std::string made;
  const auto put = [&](int64_t number) { made.append(reinterpret_cast<const char*>(&number), sizeof number); };
  all_of(tensors, [&](const at::Tensor& tensor) {
    put(tensor.dim() << 8 | static_cast<int64_t>(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) put(size);
    return true;
  });
  return py::bytes(made);
}

}  // namespace

void bind_pairs(py::module_& m) {
  m.def("alike", &alike);
  m.def("are_plain", &are_plain);
  m.def("versions_of", &versions_of);
  m.def("size_to_widen", &size_to_widen);
  m.def("lie_in", &lie_in);
  m.def("shapes_of", &shapes_of);
  m.def(
      "rows_of_pairs",
      [](const Tensors& mine, const Tensors& theirs, const std::vector<size_t>& which, const std::vector<Kind>& kinds, int64_t most) {
        Pairs made = rows_of(mine, theirs, which, kinds, most);
        return std::make_tuple(made.rows, made.pieces, made.held);
      },
      "rows, pieces of each pair, copies: of results, references, which kind each is, the kinds, and the most of a piece");
}

}  // namespace op_tools
