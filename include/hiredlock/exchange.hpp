// What one operation says to one server and what it makes of the answers. Decisions only: a driver moves the bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <hiredlock/command.hpp>
#include <hiredlock/reply.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

/// One operation with one server. start() says the first commands; each answer goes to take(), which may say more; true means decided and every
/// command answered (a Handshake that failed excepted: its connection is closed). start() may come again, after a connection broke.
class Exchange {
public:
    virtual ~Exchange() = default;
    virtual void start(CommandSink& sink) = 0;
    virtual bool take(const Reply& reply, CommandSink& sink) = 0;

    /// The answer will not come: what is to be said behind the commands before the connection is closed.
    virtual void give_up(CommandSink&) {}
    /// True where doing it twice is as good as once, so that it may be started again on another connection.
    virtual bool is_repeatable() const noexcept { return true; }
    /// How long to wait for all answers, given the endpoint's command timeout.
    virtual Clock::duration time_for_answers(Clock::duration command_timeout) const noexcept { return command_timeout; }

    Answer answer = Answer::failed;
    std::error_code error{};
    std::string words{};  ///< the server's own
    std::uint64_t fencing = 0;

    // Set by the Session that conducts it.
    bool maybe_done = false;           ///< an earlier start was sent and not answered
    std::optional<Outcome> ended{};    ///< how it ended, once it has

protected:
    bool decide(Answer value) noexcept {
        answer = value;
        return true;
    }

    bool fail(std::error_code code, std::string_view text) {
        answer = Answer::failed;
        error = code;
        words = without_arguments(text);
        return true;
    }

    bool fail(const Reply& reply) {
        if (reply.is_error()) return fail(meaning(reply.text), reply.text);
        return fail(Errc::protocol, "an answer of an unexpected type");
    }
};

/// Whether the server answers.
class Ping final : public Exchange {
public:
    void start(CommandSink& sink) override { sink.command({"PING"}); }
    bool take(const Reply& reply, CommandSink&) override { return reply.kind == Reply::Kind::text ? decide(Answer::yes) : fail(reply); }
};

/// This form of a command is denied or not there; another may do.
inline bool is_refused_for_good(const Reply& reply) noexcept { return meaning(reply.text) == Errc::denied || is_unknown_command(reply.text); }

/// What WAIT or WAITAOF answered: {} where enough have the write, else why it does not count.
inline std::error_code acknowledged(const Reply& reply, const Acknowledgement& asked, std::string& words) {
    if (reply.is_error()) {
        words = without_arguments(reply.text);
        return meaning(reply.text);
    }
    const bool pair = asked.on_disk && reply.kind == Reply::Kind::array && reply.elements.size() == 2 &&
                      reply.elements[0].kind == Reply::Kind::integer && reply.elements[1].kind == Reply::Kind::integer;
    if (!pair && (asked.on_disk || reply.kind != Reply::Kind::integer)) {
        words = "an answer of an unexpected type";
        return Errc::protocol;
    }
    const long long local = pair ? reply.elements[0].integer : asked.local;
    const long long replicas = pair ? reply.elements[1].integer : reply.integer;
    if (local >= asked.local && replicas >= asked.replicas) return {};
    words = std::to_string(replicas) + " of " + std::to_string(asked.replicas) + " replicas acknowledged in time";
    if (local < asked.local) words += ", the server's own disk did not";
    return Errc::not_replicated;
}

}  // namespace hiredlock::detail
