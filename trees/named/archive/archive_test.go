package archive

import (
	"bytes"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func sample(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, 3)
	for _, e := range []Entry{{Path: "d", Kind: sigma.KindDir, Perm: 0o755, Modified: time.Unix(5, 6)},
		{Path: "d/f", Kind: sigma.KindFile, Perm: 0o600, Data: []byte("text")}, {Path: "l", Kind: sigma.KindSymlink,
			Data: []byte("d/f")}} {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What was written is read; what is damaged at any byte, cut or extended is refused.
func TestArchive(t *testing.T) {
	text := sample(t)
	var got []Entry
	n, err := Read(bytes.NewReader(text), func(e Entry) error { got = append(got, e); return nil })
	if err != nil || n != 3 || got[0].Path != "d" || got[0].Perm != 0o755 || !got[0].Modified.Equal(time.Unix(5, 6)) ||
		string(got[1].Data) != "text" || got[2].Kind != sigma.KindSymlink {
		t.Fatalf("got %d, %v, %+v", n, err, got)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := Check(bytes.NewReader(b)); sigma.KindOf(err) != sigma.KindInvalid || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range text {
		b := bytes.Clone(text)
		b[i] ^= 0x11
		refused("damaged", b)
		refused("cut", text[:i])
	}
	refused("extended", append(bytes.Clone(text), 0))
}

// No bytes make it fail otherwise, or take much memory.
func FuzzRead(f *testing.F) {
	f.Add(sample(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Check(bytes.NewReader(b)); err != nil && sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%v", err)
		}
	})
}
