package text

import (
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// respVersion is what clients of Redis take the server for; they choose commands by it.
	respVersion = "7.0.0"
	// cachedVersion is what clients of memcached are told.
	cachedVersion = "1.6.0-sigma"
	itemOverhead  = 40 // bytes of an item besides key and value, about
	hotShown      = 8
)

// info is the answer to INFO.
func (s *Server) info() []byte {
	st := s.cfg.Backend.Store().Stats()
	now, all := s.clients()
	var b strings.Builder
	fmt.Fprintf(&b, "# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\nserver_name:sigma-cache\r\n"+
		"process_id:%d\r\nuptime_in_seconds:%d\r\n", respVersion, os.Getpid(), int(time.Since(s.began).Seconds()))
	fmt.Fprintf(&b, "\r\n# Clients\r\nconnected_clients:%d\r\nmaxclients:%d\r\n", now, s.cfg.ConnsMax)
	fmt.Fprintf(&b, "\r\n# Memory\r\nused_memory:%d\r\nused_memory_dataset:%d\r\nmaxmemory:%d\r\n"+
		"maxmemory_policy:s3-fifo\r\n", st.Memory, st.Bytes, st.Limit)
	fmt.Fprintf(&b, "\r\n# Stats\r\ntotal_connections_received:%d\r\ntotal_commands_processed:%d\r\n"+
		"keyspace_hits:%d\r\nkeyspace_misses:%d\r\nevicted_keys:%d\r\nexpired_keys:%d\r\n", all,
		s.count.Load(), st.Hits, st.Gets-st.Hits, st.Evicted, st.Expired)
	fmt.Fprintf(&b, "\r\n# Sizes\r\n")
	for i, n := range st.Sizes {
		if n > 0 {
			fmt.Fprintf(&b, "values_below_%d_bytes:%d\r\n", 1<<i, n)
		}
	}
	fmt.Fprintf(&b, "\r\n# Hot\r\n")
	for i, h := range s.cfg.Backend.Store().Hot(hotShown) {
		fmt.Fprintf(&b, "hot%d:share=%.4f,key=%s\r\n", i, h.Share, clean([]byte(h.Key)))
	}
	fmt.Fprintf(&b, "\r\n# Keyspace\r\n")
	if st.Items > 0 {
		fmt.Fprintf(&b, "db0:keys=%d\r\n", st.Items)
	}
	return []byte(b.String())
}
