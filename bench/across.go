package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// What the bench dial measures besides dialling: how soon connections end that are taken back, and
// what --encrypt costs.

// revocations: from when a proc begins to take its endpoint back until who dialled it, on the same
// machine and on another, sees the end. The two procs' clocks are the same, as the machines are of
// one host.
func (r *Run) revocations(ctx context.Context, near, far *connections) error {
	count := 100
	if r.Quick {
		count = 30
	}
	for _, on := range []struct {
		metric string
		a      *connections
	}{{"revoke_ms", near}, {"revoke_far_ms", far}} {
		ms, err := on.a.revoked(ctx, count)
		if err != nil {
			return err
		}
		for _, v := range ms {
			r.sample("sigma", on.metric, v)
		}
		if err := r.print(Line{Metric: on.metric, Unit: "ms", Ours: median(ms), N: len(ms)}); err != nil {
			return err
		}
		if err := r.print(Line{Metric: strings.Replace(on.metric, "_ms", "_p99_ms", 1), Unit: "ms",
			Ours: quantile(ms, 0.99), N: len(ms)}); err != nil {
			return err
		}
	}
	return nil
}

// revoked has connections taken back, one after another.
func (a *connections) revoked(ctx context.Context, count int) (ms []float64, err error) {
	const address = "/connection-revoked"
	ids, err := a.at.Spawn(ctx, sigma.Descriptor{Program: a.path, Args: []string{"serve-revoked", "sigma", address},
		Start: sigma.StartedByCall, Memory: connectionMemory})
	if err == nil {
		err = a.at.WaitStart(ctx, ids[0])
	}
	if err != nil {
		return nil, err
	}
	defer a.at.Kill(context.WithoutCancel(ctx), ids[0])
	text, err := a.from.output(ctx, sigma.Descriptor{Program: a.path, Args: []string{"revoked", "sigma", address,
		strconv.Itoa(count)}, Memory: connectionMemory})
	if err != nil {
		return nil, err
	}
	for word := range strings.FieldsSeq(string(text)) {
		ns, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, err
		}
		ms = append(ms, ns/float64(time.Millisecond))
	}
	if len(ms) != count {
		return nil, fmt.Errorf("revoked: %d figures, not %d", len(ms), count)
	}
	return ms, nil
}

// encrypted: dials, round trips and a stream between two machines that encrypt, beside TLS 1.3 of
// plain programs on the same way, which shakes hands for each connection, too.
func (r *Run) encrypted(ctx context.Context, local string) error {
	blocks, dials, trips, streamed := 10, 200, 5000, 4096
	if r.Quick {
		blocks, dials, trips, streamed = 3, 50, 1000, 256
	}
	a, err := r.newArms(local)
	if err != nil {
		return err
	}
	defer a.end()
	m1, m2, err := r.bootTwo(ctx, "encrypted", "--encrypt")
	if err != nil {
		return err
	}
	a.ends = append(a.ends, func() { m2.Close(); m1.down() })
	if a.path, err = m1.install(ctx, local, "connection"); err != nil {
		return err
	}
	if err := a.proc(ctx, m1, m2, "sigma", "sigma", a.path); err != nil {
		return err
	}
	if err := a.plain(ctx, "tls", "tls", "10.77.0.1:0", within(m1.pid), within(m2.pid)); err != nil {
		return err
	}
	if err := a.measure(ctx, blocks, dials, dials, "dial", free,
		microseconds("dial_p50_us", "dial_p99_us")); err != nil {
		return err
	}
	if err := a.measure(ctx, blocks, trips, trips, "echo", free, microseconds("rtt_us", "rtt_p99_us")); err != nil {
		return err
	}
	if err := a.measure(ctx, blocks, streamed, 1, "stream", free, perSecond(streamed)); err != nil {
		return err
	}
	for _, m := range []struct {
		metric, unit string
		more         bool
		n            int
	}{{"dial_p50_us", "us", false, dials}, {"rtt_us", "us", false, trips}, {"echo_cpu_us", "us", false, trips},
		{"bytes_per_s", "B/s", true, 1}} {
		if err := a.print("sigma", free, m.metric, "encrypted_"+m.metric, m.unit, m.more, m.n, "tls"); err != nil {
			return err
		}
	}
	return nil
}
