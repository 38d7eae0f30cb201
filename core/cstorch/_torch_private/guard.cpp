// The device guard of csx, in native code.
//
// The guard that torch 2.13 gives a Python backend calls Python to exchange streams. The autograd engine does that in a
// destructor while an exception unwinds, where another exception ends the process: every error raised inside backward
// would be an abort. csx has one device and one stream, so nothing here needs Python.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct CsxGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device() { return c10::Device(c10::DeviceType::PrivateUse1, 0); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }

  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Device getDevice() const override { return device(); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}

  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

CsxGuard guard;

}  // namespace

extern "C" void cstorch_install_guard() {
  const auto slot = static_cast<size_t>(c10::DeviceType::PrivateUse1);
  c10::impl::device_guard_impl_registry[slot].store(&guard);
}
