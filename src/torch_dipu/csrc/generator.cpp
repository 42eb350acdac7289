// The device's random generator: a host engine of its own per device, so that the CPU's is never consumed.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <random>

#include "core.h"

namespace dipu {
namespace {

struct Generator final : c10::GeneratorImpl {
  at::Generator engine = at::detail::createCPUGenerator();

  explicit Generator(int device)
      : c10::GeneratorImpl(dipu_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  static c10::DeviceType device_type() {
    return kDipu;
  }
  void set_current_seed(uint64_t seed) override {
    engine.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    return engine.current_seed();
  }
  uint64_t seed() override {
    uint64_t value = 0;
    if (runtime().entropy == nullptr || runtime().entropy(device().index(), &value) != DIPU_OK) {
      value = std::random_device{}();
    }
    engine.set_current_seed(value);
    return value;
  }
  void set_offset(uint64_t offset) override {
    engine.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return engine.get_offset();
  }
  void set_state(const c10::TensorImpl& state) override {
    engine.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return engine.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->engine = engine.clone();
    return copy;
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

at::Generator host_generator(const std::optional<at::Generator>& generator, int device) {
  const auto& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(
      chosen.device().type() == kDipu, "Expected a 'dipu' device type for generator but found '",
      chosen.device().type(), "'");
  return static_cast<Generator*>(chosen.unsafeGetGeneratorImpl())->engine;
}

static std::mutex g_borrow;  // one at a time: there is one default engine on the host

struct BorrowEngine::State {
  std::lock_guard<std::mutex> lock{g_borrow};
  at::Generator host, device;
  std::shared_ptr<at::CPUGeneratorImpl> kept;
  static void copy(at::CPUGeneratorImpl* from, at::CPUGeneratorImpl* to) {
    to->set_engine(from->engine());
    to->set_next_float_normal_sample(from->next_float_normal_sample());
    to->set_next_double_normal_sample(from->next_double_normal_sample());
  }
};
BorrowEngine::BorrowEngine(int device) : state_(std::make_unique<State>()) {
  state_->host = at::detail::getDefaultCPUGenerator();
  state_->device = host_generator(std::nullopt, device);
  state_->kept = std::make_shared<at::CPUGeneratorImpl>(0);
  State::copy(host_impl(state_->host), state_->kept.get());
  State::copy(host_impl(state_->device), host_impl(state_->host));
}
BorrowEngine::~BorrowEngine() {
  State::copy(host_impl(state_->host), host_impl(state_->device));
  State::copy(state_->kept.get(), host_impl(state_->host));
}

}  // namespace dipu
