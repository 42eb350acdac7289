// What an optimizer asks of each parameter, asked without Python: its count of steps, past a function mode; its state.
#include <pybind11/pybind11.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace op_tools {
namespace {

bool is_the_only_mode(PyObject* mode) {
  using Modes = at::impl::PythonTorchFunctionTLS;
  return Modes::stack_len() == 1 && Modes::get_stack_at(0)->ptr(getPyInterpreter()) == mode;
}

// number_of(mode, value) -> a float; None where another mode is to see it, or it is none of the host's.
PyObject* number_of(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count == 2 && THPVariable_CheckExact(args[1]) && is_the_only_mode(args[0])) {
    const at::Tensor& tensor = THPVariable_Unpack(args[1]);
    if (tensor.is_cpu() && tensor.numel() == 1 && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble)) try {
        return PyFloat_FromDouble(tensor.item().toDouble());
      } catch (std::exception&) {  // Python says it better
      }
  }
  Py_RETURN_NONE;
}

// has_all(dict, list of tensors): whether all are keys of it. A tensor's hash is its address, which Python asks by a frame;
// where a kind of tensors has another, none is found, and Python is to look.
PyObject* has_all(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(args[0]) || !PyList_CheckExact(args[1])) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
    PyObject* key = PyList_GET_ITEM(args[1], i);
    if (_PyDict_GetItem_KnownHash(args[0], key, Py_hash_t(key)) != nullptr) continue;
    if (PyErr_Occurred()) PyErr_Clear();
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

template <class Function>
PyMethodDef method(const char* name, Function function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

}  // namespace

void bind_values(py::module_& m) {
  static PyMethodDef methods[] = {method("number_of", number_of), method("has_all", has_all)};
  for (PyMethodDef& one : methods) m.attr(one.ml_name) = py::reinterpret_steal<py::object>(PyCFunction_New(&one, nullptr));
}

}  // namespace op_tools
