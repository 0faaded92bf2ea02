// Fibers: every thread of a kernel has a stack of its own, and runs until it waits for another one.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <new>
#include <vector>

namespace bs::emulator {

// Stacks are kept for the next launch. A page below each of them faults when a kernel needs more.
class Stacks {
   public:
    static constexpr size_t BYTES = 128 * 1024, GUARD = 4096;

    void* take() {
        if (free_.empty()) {
            void* made = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (made == MAP_FAILED || mprotect(made, GUARD, PROT_NONE)) throw std::bad_alloc();
            return made;
        }
        void* stack = free_.back();
        free_.pop_back();
        return stack;
    }

    void give_back(void* stack) { free_.push_back(stack); }

   private:
    std::vector<void*> free_;
};

inline Stacks stacks;

// Runs `body(argument)`, which never returns: it switches away for the last time instead.
class Fiber {
   public:
    void start(void (*body)(void*), void* argument) {
        stack_ = stacks.take();
        body_ = body, argument_ = argument, entered_ = false;
        getcontext(&context_);
        context_.uc_stack.ss_sp = static_cast<char*>(stack_) + Stacks::GUARD;
        context_.uc_stack.ss_size = Stacks::BYTES - Stacks::GUARD;
        context_.uc_link = nullptr;
        makecontext(&context_, enter, 0);
    }

    // From the scheduler to the fiber, and back. Contexts save the mask of signals too, by a call of the system: a
    // fiber is entered by its context once, and jumped to from then on.
    void resume() {
        running_ = this;
        if (_setjmp(scheduler_)) return;
        if (entered_) _longjmp(left_, 1);
        entered_ = true;
        setcontext(&context_);
    }
    void leave() {
        if (!_setjmp(left_)) _longjmp(scheduler_, 1);
    }

    bool holds(const void* pointer) const {
        const char *p = static_cast<const char*>(pointer), *begin = static_cast<const char*>(stack_);
        return p >= begin && p < begin + Stacks::BYTES;
    }

    void end() {
        if (stack_) stacks.give_back(stack_);
        stack_ = nullptr;
    }

   private:
    static void enter() { running_->body_(running_->argument_); }

    ucontext_t context_;
    jmp_buf left_;
    bool entered_ = false;
    void* stack_ = nullptr;
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    static inline jmp_buf scheduler_;
    static inline Fiber* running_ = nullptr;
};

}  // namespace bs::emulator
