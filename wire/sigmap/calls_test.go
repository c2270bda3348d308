package sigmap

import "testing"

// TestFit: as many items go in one payload as it takes, one in any case, and all that are short.
func TestFit(t *testing.T) {
	for _, c := range []struct{ size, n, least, most int }{{10, 0, 0, 0}, {10, 1, 1, 1}, {10, 512, 512, 512},
		{4096, 512, 7, DataMax / 4096}, {DataMax, 5, 1, 1}, {2 * DataMax, 2, 1, 1}} {
		item := make([]byte, c.size)
		code := func(co *Coder, n int) {
			for range n {
				co.Data(&item)
			}
		}
		n := Fit(c.n, code)
		if n < c.least || n > c.most {
			t.Errorf("%d of %d items of %d bytes, not %d to %d", n, c.n, c.size, c.least, c.most)
		}
		if _, err := Payload(func(co *Coder) { code(co, n) }); err != nil && n > 1 {
			t.Errorf("%d items of %d bytes: %v", n, c.size, err)
		}
	}
}
