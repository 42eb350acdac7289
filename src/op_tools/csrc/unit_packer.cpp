// The records of a packed archive, with as little Python as can be.
#include "packer.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>

#include "hash.h"

namespace op_tools {
namespace {

constexpr size_t kHead = 64, kAlign = 64;
constexpr int kValues = 2, kCall = 3;
constexpr int kInput = 0, kOutput = 1;  // of store.PARTS
constexpr size_t kLarge = 1 << 16;  // bytes from which on others may have the interpreter meanwhile
const std::string kNone;

size_t padded(size_t size) { return kHead + (size + kAlign - 1) / kAlign * kAlign; }

// zlib's, eight bytes at a time.
uint32_t crc32(const char* data, size_t size) {
  static const auto table = [] {
    std::array<std::array<uint32_t, 256>, 8> made{};
    for (uint32_t at = 0; at < 256; at++) {
      uint32_t value = at;
      for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
      made[0][at] = value;
    }
    for (size_t row = 1; row < 8; row++)
      for (size_t at = 0; at < 256; at++) made[row][at] = (made[row - 1][at] >> 8) ^ made[0][made[row - 1][at] & 255];
    return made;
  }();
  uint32_t crc = ~0u;
  for (; size >= 8; data += 8, size -= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4), std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
        table[3][high & 255] ^ table[2][high >> 8 & 255] ^ table[1][high >> 16 & 255] ^ table[0][high >> 24];
  }
  for (; size; data++, size--) crc = (crc >> 8) ^ table[0][(crc ^ static_cast<uint8_t>(*data)) & 255];
  return ~crc;
}

}  // namespace

void Room::use(const py::handle& given, uint64_t now) {
  static PyObject* const word = PyUnicode_InternFromString("filled");
  filled = py::cast<size_t>(given.attr(py::handle(word)));
  end = now;
  used = 0;
  if (arena.ptr() == given.ptr()) return;
  together = 0;
  arena = py::reinterpret_borrow<py::object>(given);
  memory = THPVariable_Unpack(py::object(arena.attr("memory")).ptr());
  const py::object twin = arena.attr("near");
  near = twin.is_none() ? at::Tensor() : THPVariable_Unpack(twin.ptr());
  address = static_cast<char*>(memory.data_ptr());
  size = arena.attr("size").cast<size_t>();
  locked = arena.attr("locked").cast<bool>();
  device = arena.attr("device").cast<std::string>();
}

void Room::record(int kind, int part, size_t length, uint64_t hashed, uint64_t call, bool here) {
  char* at = head();
  const uint64_t numbers[3] = {length, hashed, call};
  std::memset(at, 0, kHead);
  std::memcpy(at, "OPC1", 4);
  at[4] = static_cast<char>(kind), at[5] = static_cast<char>(part);
  std::memcpy(at + 8, numbers, sizeof numbers);
  const size_t whole = padded(length), elsewhere = here ? 0 : length;
  std::memset(at + kHead + length - elsewhere, 0, whole - kHead - length);
  filled += whole, end += whole, used += whole, together += whole - elsewhere;
}

void Packer::begin(py::object store, py::handle arena, uint64_t end, int64_t step) {
  room_.use(arena, end);
  store_ = std::move(store), step_ = step, allowed_ = false;
  text_.clear(), numbers_.clear(), tensors_.clear();
  pieces_ = nullptr, number_ = 0;
}

// Room for so many bytes; of a device's kind, unless that is empty.
void Packer::ensure(size_t need, const std::string& kind) {
  if (room_.filled + need <= room_.size && (kind.empty() || kind == room_.device)) return;
  sent_.give();
  const size_t used = std::exchange(room_.used, 0);
  const bool as_is = kind.empty() && room_.near.defined();  // what lies there is not laid out as the file is
  const py::tuple found = store_.attr("_room")(used, need, as_is ? room_.device : kind);
  room_.use(found[0], found[1].cast<uint64_t>());
}

// Its values lie behind it, or are given to the device: in the file from now on.
void Packer::end() {
  try {
    sent_.give();
  } catch (const std::exception&) {  // after an error: that one is told
  }
  store_ = py::object();
  held_.clear();
}

void Packer::open(const std::string& header) {
  look();
  text_ += "{\"call\":";
  text_ += header;
  text_ += ",\"args\":";
}

void Packer::close(int kind, uint64_t call) {
  sent_.give();
  text_ += '}';
  ensure(padded(text_.size()), kNone);
  std::memcpy(room_.head() + kHead, text_.data(), text_.size());
  room_.record(kCall, kind, text_.size(), crc32(text_.data(), text_.size()), call);
}

void Packer::part(py::object store, py::handle arena, uint64_t end, int64_t step, int kind, uint64_t call,
                  py::handle header, py::tuple args, py::dict kwargs, py::dict more) {
  const Over over{*this};
  begin(std::move(store), arena, end, step);
  for (PyObject* values : {args.ptr(), kwargs.ptr(), more.ptr()}) find_tensors(values);
  write(header.ptr(), true);
  open(std::exchange(text_, {}));
  write_items(args.ptr(), false);
  text_ += ",\"kwargs\":";
  write_dict(kwargs.ptr(), false);
  for (const auto& [key, value] : more) {
    text_ += ',';
    write_text(key.ptr());
    text_ += ':';
    write(value.ptr(), true);
  }
  close(kind, call);
}

void Packer::input(uint64_t call, const std::string& header, PyObject* args, PyObject* kwargs) {
  find_tensors(args), find_tensors(kwargs);
  open(header);
  write_items(args, false);
  text_ += ",\"kwargs\":";
  write_dict(kwargs, false);
  close(kInput, call);
}

void Packer::output(uint64_t call, PyObject* result, const Changes& changes) {
  find_tensors(result);
  for (const auto& [place, tensor] : changes.mutated) find_tensors(tensor);
  open("{\"id\":" + std::to_string(call) + '}');
  text_ += '[';
  write(result, false);
  text_ += "],\"kwargs\":{},\"mutated\":{";
  for (size_t at = 0; at < changes.mutated.size(); at++) {
    text_ += at ? ",\"" : "\"";
    text_ += std::to_string(changes.mutated[at].first);
    text_ += "\":";
    write_tensor(changes.mutated[at].second);
  }
  text_ += "},\"written\":[";
  for (size_t at = 0; at < changes.written.size(); at++) {
    if (at) text_ += ',';
    text_ += std::to_string(changes.written[at]);
  }
  text_ += ']';
  close(kOutput, call);
}

void Packer::gradients(int kind, uint64_t call, const std::vector<const Piece*>& pieces, bool complete) {
  text_.clear(), number_ = 0;
  open("{\"id\":" + std::to_string(call) + '}');
  text_ += '[';
  for (size_t at = 0; at < pieces.size(); at++) {
    if (at) text_ += ',';
    if (pieces[at] != nullptr) write_piece(*pieces[at]);
    else text_ += "null";
  }
  text_ += complete ? "],\"kwargs\":{},\"complete\":true" : "],\"kwargs\":{},\"complete\":false";
  close(kind, call);
}

Piece Packer::piece(py::object store, py::handle arena, uint64_t end, int64_t step, py::handle value) {
  const Over over{*this};
  begin(std::move(store), arena, end, step);
  return piece(value.ptr());
}

Piece Packer::piece(PyObject* value) {
  Piece made;
  find_tensors(value);
  look();
  pieces_ = &made.texts;
  write(value, false);
  made.texts.push_back(std::move(text_));
  sent_.give();
  return made;
}

std::vector<Piece> Packer::pieces(const std::vector<at::Tensor>& gradients) {
  std::vector<Piece> made(gradients.size());
  for (const at::Tensor& gradient : gradients)
    if (is_plain(gradient) && !reach_.sees(gradient)) tensors_.push_back(&gradient);
  look();
  for (size_t at = 0; at < gradients.size(); at++) {
    pieces_ = &made[at].texts;
    if (is_plain(gradients[at])) {
      write_tensor(gradients[at], 0, take(gradients[at]));
    } else {
      held_.push_back(py::reinterpret_steal<py::object>(THPVariable_Wrap(gradients[at])));
      write(held_.back().ptr(), false);
    }
    made[at].texts.push_back(std::exchange(text_, {}));
  }
  sent_.give();
  return made;
}

At Packer::take(py::object store, py::handle arena, uint64_t end, int64_t step, py::handle tensor) {
  const Over over{*this};
  begin(std::move(store), arena, end, step);
  find_tensors(tensor.ptr());
  look();
  const At at = take(tensor.ptr());
  sent_.give();
  return at;
}

// The tensors whose memory the host does not see.
void Packer::find_tensors(PyObject* value) {
  if (THPVariable_CheckExact(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (is_plain(tensor) && !reach_.sees(tensor)) tensors_.push_back(&tensor);
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(value); at++) find_tensors(PySequence_Fast_GET_ITEM(value, at));
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) find_tensors(item);
  }
}

void Packer::look() {
  if (!tensors_.empty()) sent_.look(tensors_, step_);
}

At Packer::take(PyObject* value) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!is_plain(tensor)) {
    sent_.give();
    const size_t used = std::exchange(room_.used, 0);
    const py::tuple found = store_.attr("_odd")(used, py::handle(value));
    room_.use(found[0], found[1].cast<uint64_t>());
    return found[2].cast<At>();
  }
  return take(tensor);
}

At Packer::take(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  return reach_.sees(tensor) ? reached(tensor) : far(tensor);
}

At Packer::reached(const at::Tensor& tensor) {
  if (const auto known = known_.find(tensor)) return saved += known->second, *known;
  const Layout layout(tensor);
  const size_t size = layout.count * layout.width;
  ensure(padded(size), kNone);
  uint64_t hashed = 0;
  {
    std::optional<py::gil_scoped_release> free;
    if (size >= kLarge) free.emplace();
    auto* to = reinterpret_cast<uint8_t*>(room_.head()) + kHead;
    const uint8_t* from = reach_.address(tensor);
    if (layout.together()) std::memcpy(to, from, size);
    else layout.gather(from, to);
    hashed = hash_bytes(to, size);
  }
  const auto [found, fresh] = contents_.try_emplace({hashed, size}, room_.end + kHead, size);
  const At at = found->second;
  if (fresh) room_.record(kValues, 0, size, hashed, 0);
  else saved += at.second;
  known_.keep(tensor, at);
  return at;
}

At Packer::far(const at::Tensor& tensor) {
  if (const auto known = sent_.find(tensor, step_)) return saved += known->second, *known;
  const Layout layout(tensor);
  const size_t size = layout.count * layout.width;
  if (!std::exchange(allowed_, true) && !sent_.launches(tensor)) check_allowed(tensor.device().type());
  ensure(padded(size), name_of(tensor.device().type()));
  const At at(room_.end + kHead, size);
  bool here = true;
  {
    std::optional<py::gil_scoped_release> free;
    if (!room_.locked) free.emplace();  // else it waits for nobody
    here = !sent_.send(tensor, {room_.memory, room_.near, room_.head(), room_.locked}, room_.filled, room_.end, step_);
  }
  room_.record(kValues, 0, size, 0, 0, here);
  sent++;
  return at;
}

void Packer::check_allowed(c10::DeviceType type) {
  py::object& asked = capturing_[type];
  if (!asked) asked = store_.attr("_capturing")(name_of(type));
  const auto found = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(asked.ptr()));
  if (!found) throw py::error_already_set();
  if (found.ptr() != Py_False) store_.attr("_refuse")(name_of(type));
}

void Packer::forget(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) known_.forget(tensor), sent_.forget(tensor);
}

void Packer::forget_all() { sent_.forget_all(); }

void Packer::trust_nobody() {
  known_.trust_nobody();
  sent_.trust_nobody();
}

// The same for memory that has a `near` one: a part of it, which lies in `landing` from then on.
void Packer::land(uint64_t stop, const at::Tensor& host, const at::Tensor& landing, size_t from, size_t to) {
  sent_.settle(stop, Sent::Landing{static_cast<char*>(landing.data_ptr()), static_cast<char*>(host.data_ptr()), from, to, landing});
}

void bind_packer(py::module_& m) {
  const auto free = py::call_guard<py::gil_scoped_release>();
  py::class_<Piece>(m, "Piece");
  py::class_<Packer>(m, "Packer")
      .def(py::init<bool, uint64_t, py::function, py::function>())
      .def("part", &Packer::part)
      .def("piece", py::overload_cast<py::object, py::handle, uint64_t, int64_t, py::handle>(&Packer::piece))
      .def("take", py::overload_cast<py::object, py::handle, uint64_t, int64_t, py::handle>(&Packer::take))
      .def("forget", &Packer::forget)
      .def("forget_all", &Packer::forget_all)
      .def("trust_nobody", &Packer::trust_nobody)
      .def("settle", &Packer::settle, free)
      .def("land", &Packer::land, free)
      .def("clear", &Packer::clear, free)
      .def("release", &Packer::release)
      .def_readwrite("over", &Packer::over)
      .def_readwrite("unspent", &Packer::unspent)
      .def_property_readonly("first", &Packer::first)
      .def_property_readonly("used", &Packer::used)
      .def_readonly("saved", &Packer::saved)
      .def_readonly("sent", &Packer::sent);
}

}  // namespace op_tools
