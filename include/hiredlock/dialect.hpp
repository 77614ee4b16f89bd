// Which compare-and-delete command one connection uses, and what it turns to when the server refuses that one.
#pragma once

#include <array>
#include <initializer_list>
#include <cstddef>

#include <hiredlock/endpoint.hpp>

namespace hiredlock::detail {

/// An ordered list of forms, of which one is in use. Belongs to one connection and is found out anew after a reconnect, for the server behind
/// the address may be another one by then.
class Dialect {
public:
    explicit Dialect(Cas wanted) noexcept : wanted_(wanted) {
        if (wanted_ == Cas::automatic)
            set({Cas::script, Cas::delex, Cas::delifeq, Cas::tair});  // until the server has said what it has
        else
            set({wanted_});
    }

    Cas current() const noexcept { return forms_[at_]; }
    std::size_t size() const noexcept { return size_; }
    bool may_use_script() const noexcept { return !scripts_denied_ && (wanted_ == Cas::automatic || wanted_ == Cas::script); }
    /// The server has refused a script that takes fencing numbers.
    void deny_scripts() noexcept { scripts_denied_ = true; }

    /// COMMAND INFO told which native commands there are. It ignores ACL, so the script stays as the second choice.
    void found(bool delex, bool delifeq, bool tair) noexcept {
        if (wanted_ != Cas::automatic) return;
        if (delex)
            set({Cas::delex, Cas::script});
        else if (delifeq)
            set({Cas::delifeq, Cas::script});
        else if (tair)
            set({Cas::tair, Cas::script});
        else
            set({Cas::script});
    }

    /// The server refused the current form (NOPERM, unknown command): goes to the next. False behind the last: the first is current again, since
    /// rights may change.
    bool next() noexcept {
        at_ = (at_ + 1) % size_;
        return at_ != 0;
    }

    /// An awaited answer has shown that the current form works here, as it is said where nobody waits for the answer.
    void confirm() noexcept { confirmed_ = true; }
    /// One that was not waited for was refused: the next is waited for, and finds another form.
    void doubt() noexcept { confirmed_ = false; }
    bool confirmed() const noexcept { return confirmed_; }

private:
    void set(std::initializer_list<Cas> forms) noexcept {
        size_ = 0;
        for (const Cas form : forms) forms_[size_++] = form;
        at_ = 0;
        confirmed_ = scripts_denied_ = false;
    }

    Cas wanted_;
    std::array<Cas, 4> forms_{};
    std::size_t size_ = 0;
    std::size_t at_ = 0;
    bool confirmed_ = false;
    bool scripts_denied_ = false;
};

}  // namespace hiredlock::detail
