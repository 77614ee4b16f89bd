// Commands out, replies in, over one connection, without ever blocking: the one place that touches hiredis.
#pragma once

#include <hiredis/hiredis.h>

#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/command.hpp>
#include <hiredlock/reply.hpp>
#include <hiredlock/socket.hpp>

namespace hiredlock::detail {

/// A connection of our own, or a redisContext borrowed from its owner. hiredis formats commands and reads replies; the bytes are moved here, with
/// MSG_DONTWAIT, so that every wait is ours and a borrowed socket keeps its flags.
class Wire final : public CommandSink {
public:
    Wire() = default;
    explicit Wire(redisContext* borrowed) : borrowed_(borrowed) {}

    /// The start of a connection of our own; goes on as Socket's does.
    Progress open(const Endpoint& endpoint) {
        close();
        reader_.reset(redisReaderCreate());
        return note(socket_.open(endpoint));
    }
    Progress finish_open() { return note(socket_.finish_open()); }
    Progress skip_address() { return note(socket_.skip_address()); }
    std::size_t addresses_left() const noexcept { return socket_.addresses_left(); }

    struct Obstacle {
        Errc code;
        std::string text;
    };

    /// What keeps a borrowed context from being used, if anything does.
    std::optional<Obstacle> obstacle() const {
        const redisContext& c = *borrowed_;
        if (c.err != 0) return Obstacle{Errc::unreachable, std::string{"the context is broken: "} + c.errstr};
        if (c.fd < 0) return Obstacle{Errc::unreachable, "the context is not connected"};
        if ((c.flags & (REDIS_SUBSCRIBED | REDIS_MONITORING)) != 0) return Obstacle{Errc::invalid_argument, "the context is subscribed or monitoring"};
        if (c.obuf != nullptr && *c.obuf != '\0') return Obstacle{Errc::invalid_argument, "the context has commands that its owner has not sent"};
        const bool is_read_in_part = c.reader != nullptr && (c.reader->pos != c.reader->len || c.reader->ridx != -1);
        char byte = 0;
        if (is_read_in_part || ::recv(c.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
            return Obstacle{Errc::invalid_argument, "the context has replies that its owner has not read"};
        if (has_tls(c)) return Obstacle{Errc::unsupported, "a borrowed context with TLS is not supported"};
        return std::nullopt;
    }

    void begin_borrowed() {
        if (!reader_) reader_.reset(redisReaderCreate());
    }

    /// Marks a borrowed context as hiredis marks one after a time-out, so that its owner cannot take our late reply for its own.
    void spoil(const std::string& why) noexcept {
        if (borrowed_ == nullptr || borrowed_->err != 0) return;
        borrowed_->err = REDIS_ERR_IO;
        const std::size_t size = std::min(why.size(), sizeof borrowed_->errstr - 1);
        std::copy_n(why.data(), size, borrowed_->errstr);
        borrowed_->errstr[size] = '\0';
    }

    /// Takes a command for the next flush(); its reply is one for receive().
    void command(std::initializer_list<std::string_view> arguments) override {
        constexpr std::size_t most = 8;
        if (arguments.size() > most) throw std::length_error{"hiredlock: a command has too many arguments"};
        const char* texts[most];
        std::size_t sizes[most];
        int count = 0;
        for (const std::string_view argument : arguments) {
            texts[count] = argument.data();
            sizes[count++] = argument.size();
        }
        char* formatted = nullptr;
        const auto size = redisFormatCommandArgv(&formatted, count, texts, sizes);
        if (size < 0 || formatted == nullptr) throw std::bad_alloc{};
        const std::unique_ptr<char, Free> owner{formatted};
        outgoing_.append(formatted, static_cast<std::size_t>(size));
        written_ += static_cast<std::size_t>(size);
    }

    Progress flush() {
        std::string_view rest{outgoing_};
        rest.remove_prefix(flushed_);
        const std::size_t before = rest.size();
        const Progress progress = Socket::send_on(descriptor(), rest, problem_);
        taken_ += before - rest.size();
        flushed_ = outgoing_.size() - rest.size();
        if (progress == Progress::done) {
            outgoing_.clear();
            flushed_ = 0;
            if (outgoing_.capacity() > largest_kept) outgoing_.shrink_to_fit();
        }
        return progress;
    }
    bool has_outgoing() const noexcept { return !outgoing_.empty(); }

    /// How many bytes have been written since open(), and how many of them the kernel has taken: a command of which it took none was certainly not
    /// executed.
    std::size_t bytes_written() const noexcept { return written_; }
    std::size_t bytes_taken() const noexcept { return taken_; }

    /// Makes wait_for_reply() possible on a connection of our own, where it saves a system call.
    void let_wait(std::chrono::milliseconds limit) noexcept {
        if (!is_borrowed()) socket_.let_wait(limit);
    }
    bool may_wait() const noexcept { return socket_.may_wait(); }
    /// Waits in the kernel until some of a reply has come, or for the limit of let_wait(). For receive() to look at.
    void wait_for_reply() {
        const Progress progress = read_some(0);
        if (progress == Progress::failed) broken_ = true;
    }

    /// The next reply. It is valid until the next receive().
    Progress receive(Reply& reply) {
        for (;;) {
            void* raw = nullptr;
            if (redisReaderGetReply(reader_.get(), &raw) != REDIS_OK) {
                problem_ = std::string{"protocol error: "} + reader_->errstr;
                protocol_error_ = true;
                return Progress::failed;
            }
            if (raw != nullptr) {
                reply_.reset(static_cast<redisReply*>(raw));
                if (is_push(*reply_)) continue;
                reply = view(*reply_);
                return Progress::done;
            }
            const Progress progress = broken_ ? Progress::failed : read_some(MSG_DONTWAIT);
            if (progress != Progress::done) return progress;
        }
    }

    /// True where an idle connection has been closed by the server, or says something although no answer is out.
    bool is_stale(bool answers_are_out) const noexcept {
        char byte = 0;
        const ssize_t n = ::recv(descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0) return !answers_are_out;
        return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }

    void close() noexcept {
        socket_.close();
        reader_.reset();
        reply_.reset();
        outgoing_.clear();
        flushed_ = written_ = taken_ = 0;
        protocol_error_ = broken_ = false;
    }

    void close_inherited() noexcept { socket_.close_inherited(); }

    bool is_borrowed() const noexcept { return borrowed_ != nullptr; }
    int descriptor() const noexcept { return borrowed_ != nullptr ? borrowed_->fd : socket_.descriptor(); }
    bool protocol_error() const noexcept { return protocol_error_; }
    const std::string& problem() const noexcept { return problem_; }

private:
    Progress read_some(int flags) {
        char buffer[16 * 1024];
        std::size_t received = 0;
        const Progress progress = Socket::receive_on(descriptor(), buffer, sizeof buffer, received, problem_, flags);
        if (progress != Progress::done) return progress;
        if (redisReaderFeed(reader_.get(), buffer, received) == REDIS_OK) return Progress::done;
        problem_ = std::string{"cannot read a reply: "} + reader_->errstr;
        return Progress::failed;
    }

    static constexpr std::size_t largest_kept = 64 * 1024;

    struct Free {
        void operator()(char* command) const noexcept { redisFreeCommand(command); }
        void operator()(redisReader* reader) const noexcept { redisReaderFree(reader); }
        void operator()(redisReply* reply) const noexcept { freeReplyObject(reply); }
    };

    template <class Context>
    static bool has_tls(const Context& context) noexcept {
        if constexpr (requires { context.privctx; })  // hiredis 1.0 and later
            return context.privctx != nullptr;
        else
            return false;
    }

    /// Out-of-band messages, which only a context that its owner has switched to RESP3 gets.
    static bool is_push(const redisReply& reply) noexcept {
#if defined(REDIS_REPLY_PUSH)
        return reply.type == REDIS_REPLY_PUSH;
#else
        return static_cast<void>(reply), false;
#endif
    }

    static Reply view(const redisReply& raw) {
        Reply reply;
        switch (raw.type) {
            case REDIS_REPLY_NIL: reply.kind = Reply::Kind::nil; break;
            case REDIS_REPLY_INTEGER:
                reply.kind = Reply::Kind::integer;
                reply.integer = raw.integer;
                break;
            case REDIS_REPLY_STRING:
            case REDIS_REPLY_STATUS:
                reply.kind = Reply::Kind::text;
                reply.text = {raw.str, raw.len};
                break;
            case REDIS_REPLY_ERROR:
                reply.kind = Reply::Kind::error;
                reply.text = {raw.str, raw.len};
                break;
            case REDIS_REPLY_ARRAY:
                reply.kind = Reply::Kind::array;
                reply.elements.reserve(raw.elements);
                for (std::size_t i = 0; i < raw.elements; ++i) reply.elements.push_back(view(*raw.element[i]));
                break;
            default: reply.kind = Reply::Kind::other;
        }
        return reply;
    }

    Progress note(Progress progress) {
        if (progress == Progress::failed) problem_ = socket_.problem();
        return progress;
    }

    redisContext* borrowed_ = nullptr;
    Socket socket_;
    std::unique_ptr<redisReader, Free> reader_;
    std::unique_ptr<redisReply, Free> reply_;
    std::string outgoing_;
    std::size_t flushed_ = 0;
    std::size_t taken_ = 0;
    std::size_t written_ = 0;
    bool protocol_error_ = false;
    bool broken_ = false;
    std::string problem_;
};

}  // namespace hiredlock::detail
