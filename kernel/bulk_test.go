package kernel

import (
	"bytes"
	"io"
	"testing"

	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/sigma"
)

// TestFarStreams: bytes of files of another machine go by direct connections, which end with their
// handles; where there are none the files are the same. Tickets are good for whom they were given.
func TestFarStreams(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"}, part{name: "m3", encrypt: true})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx, here := t.Context(), m1.names(sigma.DefaultRealm, "p")
	streams := func() int { return m2.served("m1", connect.Files) }
	data := make([]byte, 3<<20+5)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	for _, machine := range []string{"m2", "m3"} {
		want := map[string]int{"m2": 1}[machine]
		for _, flags := range []sigma.OpenFlags{sigma.OpenWrite | sigma.OpenHidden,
			sigma.OpenReadWrite | sigma.OpenTruncate} {
			h, err := here.Create(ctx, "/ux/"+machine+"/f", flags, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			for off := 0; off < len(data); off += 1 << 20 {
				if _, err := h.Write(data[off:min(len(data), off+1<<20)]); err != nil {
					t.Fatal(err)
				}
			}
			if n := streams(); n != want {
				t.Errorf("%d streams to write to %s", n, machine)
			}
			if st, err := h.Stat(); err != nil || st.Size != uint64(len(data)) {
				t.Errorf("%d bytes, %v", st.Size, err)
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			r, err := here.Open(ctx, "/ux/"+machine+"/f", sigma.OpenRead)
			if err != nil {
				t.Fatal(err)
			}
			got, p := []byte(nil), make([]byte, 700_000)
			for err == nil {
				var n int
				n, err = r.Read(p)
				got = append(got, p[:n]...)
			}
			if err != io.EOF || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, or others, from %s: %v", len(got), machine, err)
			}
			if want > 0 && streams() == 0 {
				t.Errorf("no stream to read from %s", machine)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			eventually(t, "the streams end", func() bool { return streams() == 0 })
		}
	}
	name, err := m2.k.connect.Tickets.Give(ctx, sigma.Principal{Realm: "default", Machine: "m1", System: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []sigma.Principal{{Realm: "other", Machine: "m1", System: true},
		{Realm: "default", Machine: "m3", System: true}, {Realm: "default", Machine: "m1", Proc: "p"}} {
		if m2.k.connect.Tickets.Take([connect.TicketSize]byte(name), from) != nil {
			t.Errorf("a ticket of another is good for %+v", from)
		}
	}
	mine := sigma.Principal{Realm: "default", Machine: "m1", System: true}
	if m2.k.connect.Tickets.Take([connect.TicketSize]byte(name), mine) == nil ||
		m2.k.connect.Tickets.Take([connect.TicketSize]byte(name),
			mine) != nil {
		t.Error("a ticket is good once")
	}
}
