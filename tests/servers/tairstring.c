/* A server module for the tests: CAD and CAS on plain strings, with the replies of Tair's TairString.
 *
 *   CAD key value                        1 deleted, 0 another value, -1 no such key
 *   CAS key old new [EX s | PX ms]       1 replaced, 0 another value, -1 no such key; without EX or PX the ttl is removed
 *
 * Build: cc -shared -fPIC -O2 -o tairstring.so tairstring.c      Load: redis-server --loadmodule ./tairstring.so
 *
 * No server header is needed: the first pointer in the context that OnLoad is given is the function that hands out all
 * others by name. The numbers below are part of the module ABI, which Redis and Valkey keep. */
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

typedef struct Ctx Ctx;
typedef struct Key Key;
typedef struct String String;

enum { ok = 0, failed = 1 };
enum { api_version = 1 };
enum { open_read = 1 << 0, open_write = 1 << 1 };
enum { type_string = 1 };
enum { event_generic = 1 << 2, event_string = 1 << 3 };

static int (*set_module_attribs)(Ctx *, const char *name, int version, int api);
static int (*create_command)(Ctx *, const char *name, int (*)(Ctx *, String **, int), const char *flags, int first_key,
                             int last_key, int key_step);
static int (*wrong_arity)(Ctx *);
static int (*reply_error)(Ctx *, const char *);
static int (*reply_integer)(Ctx *, long long);
static const char *(*bytes_of)(const String *, size_t *length);
static int (*integer_of)(const String *, long long *);
static Key *(*open_key)(Ctx *, String *name, int mode);
static void (*close_key)(Key *);
static int (*type_of)(Key *);
static char *(*value_of)(Key *, size_t *length, int mode);
static int (*delete_key)(Key *);
static int (*set_string)(Key *, String *);
static int (*expire_at)(Key *, long long unix_ms);
static long long (*unix_ms)(void);
static int (*replicate)(Ctx *, const char *command, const char *format, ...);
static int (*notify)(Ctx *, int kind, const char *event, String *key);

enum Comparison { absent = -1, other = 0, equal = 1, wrong_type };

/* Reads only: closing a key that was open for writing tells WATCH and client tracking that it was modified, and a
 * refused CAD has modified nothing. */
static enum Comparison compare(Ctx *ctx, String *name, String *expected) {
    Key *key = open_key(ctx, name, open_read);
    if (key == NULL) return absent;

    enum Comparison result = wrong_type;
    if (type_of(key) == type_string) {
        size_t length, expected_length;
        const char *value = value_of(key, &length, open_read);
        const char *bytes = bytes_of(expected, &expected_length);
        result = length == expected_length && memcmp(value, bytes, length) == 0 ? equal : other;
    }
    close_key(key);
    return result;
}

static int reply(Ctx *ctx, enum Comparison result) {
    if (result == wrong_type) return reply_error(ctx, "WRONGTYPE Operation against a key holding the wrong kind of value");
    return reply_integer(ctx, result);
}

static int cad(Ctx *ctx, String **argv, int argc) {
    if (argc != 3) return wrong_arity(ctx);

    enum Comparison result = compare(ctx, argv[1], argv[2]);
    if (result == equal) {
        Key *key = open_key(ctx, argv[1], open_read | open_write);
        delete_key(key);
        close_key(key);
        notify(ctx, event_generic, "del", argv[1]);
        replicate(ctx, "DEL", "s", argv[1]);
    }
    return reply(ctx, result);
}

/* The time, in ms since 1970, that the option and its ttl mean; 0 if they mean none. */
static long long deadline(String *option, String *ttl) {
    size_t length;
    const char *unit = bytes_of(option, &length);
    long long scale = 0, count;
    if (length == 2 && strncasecmp(unit, "EX", 2) == 0) scale = 1000;
    if (length == 2 && strncasecmp(unit, "PX", 2) == 0) scale = 1;
    if (scale == 0 || integer_of(ttl, &count) != ok || count <= 0) return 0;
    const long long now = unix_ms();
    return count > (LLONG_MAX - now) / scale ? 0 : now + count * scale;
}

static int cas(Ctx *ctx, String **argv, int argc) {
    if (argc < 4) return wrong_arity(ctx);
    const long long expires = argc == 6 ? deadline(argv[4], argv[5]) : 0;
    if (argc != 4 && expires == 0) return reply_error(ctx, "ERR syntax error");

    enum Comparison result = compare(ctx, argv[1], argv[2]);
    if (result == equal) {
        Key *key = open_key(ctx, argv[1], open_read | open_write);
        set_string(key, argv[3]);
        if (expires != 0) expire_at(key, expires);
        close_key(key);
        notify(ctx, event_string, "set", argv[1]);
        if (expires != 0) {
            /* As a point in time, for a replica must not start counting when the command reaches it. */
            notify(ctx, event_generic, "expire", argv[1]);
            replicate(ctx, "SET", "sscl", argv[1], argv[3], "PXAT", expires);
        } else {
            replicate(ctx, "SET", "ss", argv[1], argv[3]);
        }
    }
    return reply(ctx, result);
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    int (*get_api)(const char *, void *);
    memcpy(&get_api, ctx, sizeof get_api);
    const struct { const char *name; void *function; } needed[] = {
        {"RedisModule_SetModuleAttribs", &set_module_attribs},
        {"RedisModule_CreateCommand", &create_command},
        {"RedisModule_WrongArity", &wrong_arity},
        {"RedisModule_ReplyWithError", &reply_error},
        {"RedisModule_ReplyWithLongLong", &reply_integer},
        {"RedisModule_StringPtrLen", &bytes_of},
        {"RedisModule_StringToLongLong", &integer_of},
        {"RedisModule_OpenKey", &open_key},
        {"RedisModule_CloseKey", &close_key},
        {"RedisModule_KeyType", &type_of},
        {"RedisModule_StringDMA", &value_of},
        {"RedisModule_DeleteKey", &delete_key},
        {"RedisModule_StringSet", &set_string},
        {"RedisModule_SetAbsExpire", &expire_at},
        {"RedisModule_Milliseconds", &unix_ms},
        {"RedisModule_Replicate", &replicate},
        {"RedisModule_NotifyKeyspaceEvent", &notify},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i)
        if (get_api(needed[i].name, needed[i].function) != ok) return failed;

    set_module_attribs(ctx, "tairstring", 1, api_version);
    if (create_command(ctx, "cad", cad, "write deny-oom", 1, 1, 1) != ok) return failed;
    return create_command(ctx, "cas", cas, "write deny-oom", 1, 1, 1);
}
