package member

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// slogCore passes on etcd's log from warnings up.
type slogCore struct{ log *slog.Logger }

func (c slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.log.With(attributes(fields)...)}
}

func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !expected(e.Message) {
		return ce.AddCore(e, c)
	}
	return ce
}

// expected are warnings about what is wanted here: no listeners, no users, so no certificates and
// tokens, and no /proc to count files in; and about other members that are away, which sigmad says
// by their machines' beats, or a host so busy that a heartbeat is a tenth of a second late, of
// which an election may come, which is said (noteElections).
func expected(msg string) bool {
	switch msg {
	case "Running http and grpc server on single port. This is not recommended for production.",
		"simple token is not cryptographically signed",
		"failed to get file descriptor usage",
		"lost TCP streaming connection with remote peer",
		"closed TCP streaming connection with remote peer",
		"peer became inactive (message send to peer failed)",
		"prober detected unhealthy status",
		"failed to reach the peer URL",
		"failed to get version",
		"leader failed to send out heartbeat on time; took too long, leader is overloaded likely from slow disk",
		"failed to get downgrade enabled status",
		"dropped internal Raft message since sending buffer is full",
		"rejecting promote learner: learner is not ready",
		"rejected stream from remote peer because it was removed",
		"Failed to detect schema version",
		"failed to update storage version": // by a member that got its first state this moment; it is tried again
		return true
	}
	return false
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.log.With("component", "etcd").Log(context.Background(), level, e.Message, attributes(fields)...)
	return nil
}

func (c slogCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	attrs := make([]any, 0, 2*len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, k, v)
	}
	return attrs
}
