// The parts of calls as JSON, as `store.encode` has them.
#include "packer.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <charconv>
#include <cmath>

namespace op_tools {
namespace {

constexpr const char* kTag = "__op_tools__";

void append(std::string& text, int64_t number) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append(std::string& text, at::IntArrayRef numbers) {
  text += '[';
  for (size_t at = 0; at < numbers.size(); at++) {
    if (at) text += ',';
    append(text, numbers[at]);
  }
  text += ']';
}

}  // namespace

const std::string& name_of(c10::DeviceType type) {
  static std::array<std::string, static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)> names;
  std::string& name = names[static_cast<size_t>(type)];
  if (name.empty()) name = c10::DeviceTypeName(type, true);
  return name;
}

void Packer::write(PyObject* value, bool encoded) {
  if (value == Py_None) text_ += "null";
  else if (value == Py_True) text_ += "true";
  else if (value == Py_False) text_ += "false";
  else if (PyLong_CheckExact(value) || PyFloat_CheckExact(value)) write_number(value);
  else if (PyUnicode_CheckExact(value)) write_text(value);
  else if (THPVariable_CheckExact(value)) write_tensor(value);
  else if (PyList_CheckExact(value)) write_items(value, encoded);
  else if (PyTuple_CheckExact(value)) {
    if (!encoded) text_ += "{\"__op_tools__\":\"tuple\",\"value\":";
    write_items(value, encoded);
    if (!encoded) text_ += '}';
  } else if (PyDict_CheckExact(value)) write_dict(value, encoded);
  else if (THPDtype_Check(value)) write_word("dtype", reinterpret_cast<THPDtype*>(value)->name);
  else if (THPVariable_Check(value)) write_tensor(value);
  else if (py::isinstance<Piece>(value)) write_piece(py::cast<const Piece&>(py::handle(value)));
  else write_other(value, encoded);
}

// Of a tuple or a list.
void Packer::write_items(PyObject* sequence, bool encoded) {
  text_ += '[';
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(sequence); at++) {
    if (at) text_ += ',';
    write(PySequence_Fast_GET_ITEM(sequence, at), encoded);
  }
  text_ += ']';
}

void Packer::write_dict(PyObject* dict, bool encoded) {
  PyObject *key, *item;
  for (Py_ssize_t at = 0; !encoded && PyDict_Next(dict, &at, &key, &item);)
    if (!PyUnicode_CheckExact(key) || PyUnicode_CompareWithASCIIString(key, kTag) == 0) return write_other(dict, encoded);
  text_ += '{';
  bool first = true;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item); first = false) {
    if (!first) text_ += ',';
    write_text(key);
    text_ += ':';
    write(item, encoded);
  }
  text_ += '}';
}

void Packer::write_number(PyObject* value) {
  if (PyLong_Check(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) return append(text_, static_cast<int64_t>(number));
    text_ += py::str(py::handle(value)).cast<std::string>();
    return;
  }
  const double number = PyFloat_AS_DOUBLE(value);
  if (std::isnan(number)) text_ += "NaN";
  else if (std::isinf(number)) text_ += number > 0 ? "Infinity" : "-Infinity";
  else {
    char* digits = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
    text_ += digits;
    PyMem_Free(digits);
  }
}

void Packer::write_text(PyObject* value) {
  Py_ssize_t size = 0;
  bool plain = PyUnicode_Check(value) && PyUnicode_IS_ASCII(value);
  const char* word = plain ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
  for (Py_ssize_t at = 0; plain && at < size; at++) plain = word[at] >= ' ' && word[at] != '"' && word[at] != '\\' && word[at] != 127;
  if (!plain) {
    text_ += store_.attr("_quoted")(py::handle(value)).cast<std::string>();
    return;
  }
  text_ += '"';
  text_.append(word, static_cast<size_t>(size));
  text_ += '"';
}

void Packer::write_word(const char* kind, const char* word) {
  text_ += "{\"__op_tools__\":\"";
  text_ += kind;
  text_ += "\",\"value\":\"";
  text_ += word;
  text_ += "\"}";
}

// What Python makes plain, its tensors but for those.
void Packer::write_other(PyObject* value, bool encoded) {
  if (encoded) throw py::type_error("no plain value: " + py::repr(py::handle(value)).cast<std::string>());
  held_.push_back(store_.attr("_plain")(py::handle(value)));
  write(held_.back().ptr(), true);
}

void Packer::write_tensor(PyObject* value) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    held_.push_back(store_.attr("_plain")(py::handle(value)));
    PyObject* plain = held_.back().ptr();
    if (plain != value) return write(plain, true);
  }
  auto found = numbers_.find(value);
  if (found == numbers_.end()) {
    const At at = take(value);
    found = numbers_.emplace(value, std::make_pair(number_++, at)).first;
  }
  write_tensor(tensor, found->second.first, found->second.second);
}

void Packer::write_tensor(const at::Tensor& tensor, int number, const At& at) {
  text_ += "{\"__op_tools__\":\"tensor\",\"value\":{\"at\":[";
  append(text_, at.first);
  text_ += ',';
  append(text_, at.second);
  text_ += "],\"dtype\":\"";
  text_ += torch::getTHPDtype(tensor.scalar_type())->name;
  text_ += "\",\"shape\":";
  append(text_, tensor.sizes());
  text_ += ",\"stride\":";
  append(text_, tensor.strides());
  text_ += ",\"device\":\"";
  text_ += name_of(tensor.device().type());
  if (tensor.device().has_index()) text_ += ':', append(text_, tensor.device().index());
  text_ += tensor.requires_grad() ? "\",\"requires_grad\":true,\"number\":" : "\",\"requires_grad\":false,\"number\":";
  if (pieces_ == nullptr) {
    append(text_, number);
  } else {
    pieces_->push_back(std::move(text_));
    text_ = {};
  }
  text_ += "}}";
}

void Packer::write_piece(const Piece& piece) {
  for (size_t at = 0; at < piece.texts.size(); at++) {
    if (at) append(text_, number_++);
    text_ += piece.texts[at];
  }
}

}  // namespace op_tools
