package lite

import (
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Goal: many connections may be the first ones of a new file at the same time.
func TestFirstConnections(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "new")
		pool := sql.OpenDB(New(Config{Path: path, PagesMax: 1000, HeapMax: 64 << 20, BusyMax: 10 * time.Second}))
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if _, err := pool.ExecContext(t.Context(), "create table if not exists t (n integer)"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		pool.Close()
	}
}
