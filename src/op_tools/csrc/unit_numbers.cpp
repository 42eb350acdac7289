// The numbers of what is waited for, by where it lies.
#include "numbers.h"

namespace op_tools {
namespace {

constexpr size_t kFew = 16;
c10::StorageImpl* const kLeft = reinterpret_cast<c10::StorageImpl*>(1);  // something was here: what comes behind it is looked for on

}  // namespace

void Numbers::Slot::keep(const Place& place, uint32_t version, int64_t number) {
  const View view{place.offset, place.count, place.gaps, number, version, place.type};
  if (newest.count != 0 && !newest.is_at(place)) {
    if (others == nullptr) others = new Others();
    others->keep(storage, newest);
  }
  newest = view;
}

Numbers::View* Numbers::Slot::Others::find(const Place& place) {
  if (!index.empty()) {
    const auto found = index.find(place);
    return found == index.end() ? nullptr : &all[found->second];
  }
  for (View& view : all)
    if (view.is_at(place)) return &view;
  return nullptr;
}

void Numbers::Slot::Others::keep(const void* storage, const View& view) {
  const auto place_of = [&](const View& one) { return Place{storage, one.offset, one.count, one.type, one.gaps}; };
  if (View* found = find(place_of(view))) {
    *found = view;
    return;
  }
  all.push_back(view);
  if (all.size() <= kFew) return;
  for (size_t at = index.size(); at < all.size(); at++) index.emplace(place_of(all[at]), at);
}

void Numbers::Table::clear() {
  if (used == 0) return;
  for (Slot& slot : slots) {
    if (slot.storage == nullptr) continue;
    if (slot.storage != kLeft) {
      slot.clear();
      if (weakly) c10::raw::weak_intrusive_ptr::decref(slot.storage);
    }
    slot = Slot();
  }
  used = 0;
}

Numbers::Slot& Numbers::Table::free_for(const void* storage) {
  for (size_t at = start(storage);; at = (at + 1) % kRoom) {
    if (slots[at].storage == kLeft) return slots[at];
    if (slots[at].storage == nullptr) return used++, slots[at];
  }
}

// Nothing is looked for beyond a slot where nothing ever was: those at the end of a row are such again.
void Numbers::Table::leave(Slot& slot) {
  auto at = static_cast<size_t>(&slot - slots.data());
  slot = Slot();
  slot.storage = kLeft;
  if (slots[(at + 1) % kRoom].storage != nullptr) return;
  for (; slots[at].storage == kLeft; at = (at + kRoom - 1) % kRoom) slots[at].storage = nullptr, used--;
}

Numbers::Slot& Numbers::made(c10::StorageImpl* storage) {
  if (young_ == nullptr) turn();
  Slot& slot = young_->free_for(storage);
  if (Slot* known = old_ == nullptr ? nullptr : old_->find(storage)) {
    slot = *known;
    old_->leave(*known);
    return slot;
  }
  slot = Slot();
  slot.storage = storage;
  if (weakly_) c10::raw::weak_intrusive_ptr::incref(storage);
  return slot;
}

Numbers::Slot* Numbers::found_among_old(c10::StorageImpl* storage) {
  Slot* found = old_->find(storage);
  return found == nullptr || full() ? found : &made(storage);
}

void Numbers::turn() {
  if (old_ != nullptr && forgotten_ == nullptr) forgotten_ = std::move(old_);  // else nobody comes for it
  if (old_ != nullptr) old_->clear(), spare_ = std::move(old_);
  old_ = std::move(young_);
  young_ = spare_ != nullptr ? std::move(spare_) : std::make_unique<Table>(weakly_);
  first_[0].store(young_->slots.data(), std::memory_order_relaxed);
  first_[1].store(old_ == nullptr ? nullptr : old_->slots.data(), std::memory_order_relaxed);
}

void Numbers::drop(c10::StorageImpl* storage) {
  for (auto* table : {young_.get(), old_.get()}) {
    Slot* found = table == nullptr ? nullptr : table->find(storage);
    if (found == nullptr) continue;
    found->clear();
    table->leave(*found);
    if (weakly_) c10::raw::weak_intrusive_ptr::decref(storage);
    return;
  }
}

}  // namespace op_tools
