// A kernel as the emulator runs it.
//
//   KERNEL_FILE, KERNEL   a source of blockscale/cuda, and the kernel in it
//
// All that is static in this library is __shared__ (no start files are linked): the emulator gives every CTA its own.
#include KERNEL_FILE

template <class A>
A argument_of(void (*)(A));
using KernelArguments = decltype(argument_of(KERNEL));

extern "C" char __bss_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));

#define BS_EXPORTED extern "C" __attribute__((visibility("default")))

#ifdef __aarch64__
// A call passes the address of large arguments (AAPCS64), but of a copy that gcc aligns to 16 bytes. Tensor maps need 64,
// which the launch gives.
static_assert(sizeof(KernelArguments) > 16, "smaller ones are passed in registers");
BS_EXPORTED void run_kernel(const void* arguments) {
    void (*volatile kernel)(const void*) = reinterpret_cast<void (*)(const void*)>(KERNEL);  // gcc must not see both types
    kernel(arguments);
}
#else
BS_EXPORTED void run_kernel(const void* arguments) { KERNEL(*static_cast<const KernelArguments*>(arguments)); }
#endif
BS_EXPORTED size_t size_of_arguments() { return sizeof(KernelArguments); }
BS_EXPORTED size_t alignment_of_arguments() { return alignof(KernelArguments); }
BS_EXPORTED void* first_shared() { return __bss_start; }
BS_EXPORTED void* end_of_shared() { return _end; }
