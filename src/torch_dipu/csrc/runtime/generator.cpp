// SPDX-License-Identifier: Apache-2.0
// The device's random generator: a seed and an offset, as in CUDA's Philox generator. Host kernels
// use a separate host engine for each call, created from (seed, offset), so that the CPU's default
// generator is never advanced.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <random>

#include "graphs/capture.h"

namespace dipu {
namespace {

// offset increment of one call; CUDA's offsets are multiples of 4
constexpr uint64_t kOffsetOfCall = 4;

struct Generator final : c10::GeneratorImpl {
  uint64_t current = c10::default_rng_seed_val;
  uint64_t offset = 0;

  explicit Generator(int device)
      : c10::GeneratorImpl(dipu_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  static c10::DeviceType device_type() {
    return kDipu;
  }
  void set_current_seed(uint64_t seed) override {
    current = seed;
    offset = 0;
  }
  uint64_t current_seed() const override {
    return current;
  }
  uint64_t seed() override {
    uint64_t value = 0;
    if (runtime().entropy == nullptr || runtime().entropy(device().index(), &value) != DIPU_OK) {
      value = std::random_device{}();
    }
    set_current_seed(value);
    return value;
  }
  void set_offset(uint64_t value) override {
    TORCH_CHECK(value % kOffsetOfCall == 0, "the offset of a dipu generator must be a multiple of 4; found ", value);
    offset = value;
  }
  uint64_t get_offset() const override {
    return offset;
  }

  // 16 bytes, as CUDA's: the seed, then the offset. DTensor reads and writes them.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({2 * sizeof(uint64_t)}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &current, sizeof current);
    std::memcpy(static_cast<char*>(state.mutable_data_ptr()) + sizeof current, &offset, sizeof offset);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    const auto bytes = static_cast<size_t>(state.numel());
    if (bytes != sizeof current && bytes != sizeof current + sizeof offset) return set_host_state(state);
    uint64_t new_seed = 0, new_offset = 0;
    std::memcpy(&new_seed, state.data(), sizeof new_seed);
    if (bytes > sizeof new_seed) std::memcpy(&new_offset, static_cast<const char*>(state.data()) + sizeof new_seed, sizeof new_offset);
    const auto before = current;
    set_current_seed(new_seed);
    try {
      set_offset(new_offset);
    } catch (...) {
      current = before;
      throw;
    }
  }

  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->current = current;
    copy->offset = offset;
    return copy;
  }

 private:
  // Accepts the state of a host engine from an older checkpoint: its sequence cannot be continued.
  void set_host_state(const c10::TensorImpl& state) {
    auto engine = at::detail::createCPUGenerator();
    TORCH_CHECK(
        state.numel() == engine.get_state().numel(), "the state of a dipu generator has 16 bytes (seed and offset); found ",
        state.numel());
    engine.unsafeGetGeneratorImpl()->set_state(state);
    TORCH_WARN_ONCE(
        "a random state of ", state.numel(), " bytes was written by an older torch_dipu: the device uses a seed ",
        "that is derived from it, and not the numbers that would have come next");
    set_current_seed(at::check_generator<at::CPUGeneratorImpl>(engine)->random64());
  }
};

at::CPUGeneratorImpl* host_impl(const at::Generator& generator) {
  return at::check_generator<at::CPUGeneratorImpl>(generator);
}

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* generators = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); i++) generators->push_back(at::make_generator<Generator>(i));
    return generators;
  }();
  const int index = device < 0 ? current_device() : device;
  TORCH_CHECK(index < device_count(), "DIPU error: invalid device ordinal ", index);
  return (*all)[index];
}

at::Generator make_generator(int device) {
  return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

at::Generator device_generator(const std::optional<at::Generator>& generator, int device) {
  const auto& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(
      chosen.device().type() == kDipu, "Expected a 'dipu' device type for generator but found '",
      chosen.device().type(), "'");
  return chosen;
}

// At offset 0 it is the CPU's engine of the same seed, so the first call after manual_seed gives
// the CPU's numbers. Every other offset is a separate subsequence of the seed's Philox numbers.
static at::Generator engine_at(uint64_t seed, uint64_t offset) {
  if (offset == 0) return at::detail::createCPUGenerator(seed);
  at::Philox4_32 numbers(seed, /*subsequence=*/offset);
  at::mt19937_data_pod state{};
  state.seed_ = seed;
  state.left_ = 1;  // the first number mixes the state
  state.seeded_ = true;
  for (auto& word : state.state_) word = numbers();
  at::mt19937 engine;
  engine.set_data(state);
  auto generator = at::detail::createCPUGenerator(seed);
  host_impl(generator)->set_engine(engine);
  return generator;
}
static bool has_drawn(const at::Generator& engine) {
  return host_impl(engine)->engine().data().next_ != 0;
}

at::Tensor host_state(int device) {
  auto generator = default_generator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  auto* impl = static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  return engine_at(impl->current, impl->offset).get_state();
}

std::pair<uint64_t, uint64_t> generator_state(const at::Generator& generator) {
  auto* impl = static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  return {impl->current, impl->offset};
}
void set_generator_state(const at::Generator& generator, std::pair<uint64_t, uint64_t> state) {
  auto* impl = static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  std::tie(impl->current, impl->offset) = state;
}

HostEngine::HostEngine(const std::optional<at::Generator>& generator, int device) : owner_(device_generator(generator, device)) {
  save_generator(device, owner_);
  std::lock_guard<std::mutex> lock(owner_.mutex());
  auto* impl = static_cast<Generator*>(owner_.unsafeGetGeneratorImpl());
  seed_ = impl->current;
  offset_ = impl->offset;
  impl->offset += kOffsetOfCall;  // at once: another thread uses other numbers
  engine_ = engine_at(seed_, offset_);
}
HostEngine::~HostEngine() {
  if (has_drawn(engine_)) return;
  std::lock_guard<std::mutex> lock(owner_.mutex());
  auto* impl = static_cast<Generator*>(owner_.unsafeGetGeneratorImpl());
  if (impl->current == seed_ && impl->offset == offset_ + kOffsetOfCall) impl->offset = offset_;
}

static std::mutex g_borrow;  // one at a time: the host has one default engine

struct BorrowEngine::State {
  std::lock_guard<std::mutex> lock{g_borrow};
  HostEngine lent;
  at::Generator host = at::detail::getDefaultCPUGenerator();
  std::shared_ptr<at::CPUGeneratorImpl> kept = std::make_shared<at::CPUGeneratorImpl>(0);

  explicit State(int device) : lent(std::nullopt, device) {}
  static void copy(at::CPUGeneratorImpl* from, at::CPUGeneratorImpl* to) {
    to->set_engine(from->engine());
    to->set_next_float_normal_sample(from->next_float_normal_sample());
    to->set_next_double_normal_sample(from->next_double_normal_sample());
  }
};
BorrowEngine::BorrowEngine(int device) : state_(std::make_unique<State>(device)) {
  State::copy(host_impl(state_->host), state_->kept.get());
  State::copy(host_impl(state_->lent.engine()), host_impl(state_->host));
}
BorrowEngine::~BorrowEngine() {
  // the numbers are consumed
  State::copy(host_impl(state_->host), host_impl(state_->lent.engine()));
  State::copy(state_->kept.get(), host_impl(state_->host));
}

}  // namespace dipu
