package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// bridge writes what etcd's libraries log into slog, one level quieter: their Info is about etcd, not about
// Verbena.
type bridge struct {
	ctx    context.Context // slog asks for one; it never ends
	log    *slog.Logger
	fields []zapcore.Field
	cause  *atomic.Value // string: the last error that was warned of
}

// zapLogger returns a logger for etcd's libraries. cause gets the last error that they warn of: the errors
// that they return say "deadline exceeded" where the log says why.
func zapLogger(ctx context.Context, log *slog.Logger, cause *atomic.Value) *zap.Logger {
	return zap.New(&bridge{ctx: context.WithoutCancel(ctx), log: log.With("component", "etcd"), cause: cause})
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// Enabled implements zapcore.Core.
func (b *bridge) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel || l > zapcore.DebugLevel && b.log.Enabled(b.ctx, level(l))
}

// With implements zapcore.Core.
func (b *bridge) With(fields []zapcore.Field) zapcore.Core {
	return &bridge{ctx: b.ctx, log: b.log, cause: b.cause, fields: append(b.fields[:len(b.fields):len(b.fields)], fields...)}
}

// Check implements zapcore.Core.
func (b *bridge) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) && !idle(e.Message) {
		return ce.AddCore(e, b)
	}
	return ce
}

// idle picks out warnings about what an embedded member does not have: listeners, and users with tokens.
func idle(message string) bool {
	return strings.HasPrefix(message, "Running http and grpc server on single port") ||
		strings.HasPrefix(message, "simple token is not cryptographically signed")
}

// Write implements zapcore.Core.
func (b *bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(b.fields[:len(b.fields):len(b.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	if text, ok := enc.Fields["error"].(string); ok && e.Level >= zapcore.WarnLevel {
		b.cause.Store(text)
	}
	b.log.LogAttrs(b.ctx, level(e.Level), e.Message, attrs...)
	return nil
}

// lastWords has Die say why an embedded member can't go on, where etcd would panic or end the process.
func (c Config) lastWords() []zap.Option {
	if c.Die == nil {
		return nil
	}
	return []zap.Option{zap.WithPanicHook(end{c}), zap.WithFatalHook(end{c})}
}

// end is called by zap after it has written a line of which etcd does not want to return.
type end struct{ conf Config }

// OnWrite implements zapcore.CheckWriteHook.
func (e end) OnWrite(line *zapcore.CheckedEntry, fields []zapcore.Field) {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	text := line.Message
	if cause, ok := enc.Fields["error"]; ok {
		text = fmt.Sprintf("%s: %v", text, cause)
	}
	e.conf.Die(fault.New(fault.Unavailable, "the embedded etcd in %s can't go on: %s. What was acknowledged is kept; start again when the cause is gone, such as a full disk", e.conf.Dir, text))
}

// Sync implements zapcore.Core.
func (b *bridge) Sync() error { return nil }
