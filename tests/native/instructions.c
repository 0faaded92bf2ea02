// A plugin of QEMU: says how many instructions a program has executed when it ends.
//
//     qemu-aarch64 -plugin libinstructions.so -d plugin PROGRAM
//
// The functions of QEMU that it needs are declared here, as in its interface of version 1: distributions that have QEMU
// do not have its header.
#include <stdint.h>
#include <stdio.h>

typedef uint64_t Id;
struct Block;
typedef void (*OnBlock)(Id, struct Block*);
typedef void (*OnExit)(Id, void*);

extern void qemu_plugin_register_vcpu_tb_trans_cb(Id, OnBlock);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct Block*, int add, void* counter, uint64_t amount);
extern void qemu_plugin_register_atexit_cb(Id, OnExit, void*);
extern size_t qemu_plugin_tb_n_insns(const struct Block*);
extern void qemu_plugin_outs(const char*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;

static void count_block(Id id, struct Block* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &executed, qemu_plugin_tb_n_insns(block));
}

static void tell(Id id, void* unused) {
  (void)id, (void)unused;
  char text[32];
  snprintf(text, sizeof text, "executed %llu\n", (unsigned long long)executed);
  qemu_plugin_outs(text);
}

__attribute__((visibility("default"))) int qemu_plugin_install(Id id, const void* info, int count, char** arguments) {
  (void)info, (void)count, (void)arguments;
  qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
  qemu_plugin_register_atexit_cb(id, tell, NULL);
  return 0;
}
