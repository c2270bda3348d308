package lite

import (
	"strings"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// pragmas are those that statements may use. with says whether they may have an argument: one that
// only tells takes it as the name of what it tells of.
var pragmas = map[string]struct{ with bool }{
	"table_info": {true}, "table_xinfo": {true}, "table_list": {true}, "index_list": {true}, "index_info": {true},
	"index_xinfo": {true}, "foreign_key_list": {true}, "foreign_key_check": {true},
	"foreign_keys": {true}, "defer_foreign_keys": {true}, "recursive_triggers": {true}, "case_sensitive_like": {true},
	"user_version": {true}, "application_id": {true}, "integrity_check": {true}, "quick_check": {true},
	"optimize":       {true},
	"collation_list": {}, "function_list": {}, "compile_options": {}, "encoding": {}, "page_count": {}, "page_size": {},
	"max_page_count": {}, "freelist_count": {}, "journal_mode": {}, "data_version": {}, "auto_vacuum": {},
}

// modules are the virtual tables that may be made: those that keep what they hold in the file
// itself.
var modules = map[string]bool{"fts5": true, "rtree": true, "rtree_i32": true, "geopoly": true}

// functions are those that may not be called.
var functions = map[string]bool{"load_extension": true, "fts3_tokenizer": true}

// confine takes from the connection what it needs no more once the file is open.
func (c *Conn) confine() {
	for id, most := range map[int32]int32{
		sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_LENGTH: valueMax,
		sqlite3.SQLITE_LIMIT_SQL_LENGTH: textMax, sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
		sqlite3.SQLITE_LIMIT_EXPR_DEPTH:    500,
		sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 100, sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 5000,
	} {
		sqlite3.Xsqlite3_limit(c.tls, c.db, id, most)
	}
	for op, on := range map[int32]int32{
		sqlite3.SQLITE_DBCONFIG_DEFENSIVE: 1, sqlite3.SQLITE_DBCONFIG_TRUSTED_SCHEMA: 0,
		sqlite3.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION: 0, sqlite3.SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER: 0,
		sqlite3.SQLITE_DBCONFIG_WRITABLE_SCHEMA: 0,
	} {
		list := c.tls.Alloc(16)
		sqlite3.Xsqlite3_db_config(c.tls, c.db, op, libc.VaList(list, on, uintptr(0)))
		c.tls.Free(16)
	}
	sqlite3.Xsqlite3_set_authorizer(c.tls, c.db, callback(authorize), c.id)
}

// authorize is SQLite's authorizer, which is asked about each part of a statement when it is
// compiled.
func authorize(_ *libc.TLS, _ uintptr, action int32, first, second, _, _ uintptr) int32 {
	name := func(p uintptr) string {
		if p == 0 {
			return ""
		}
		return strings.ToLower(libc.GoString(p))
	}
	allowed := true
	switch action {
	case sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH:
		allowed = false
	case sqlite3.SQLITE_PRAGMA:
		p, known := pragmas[name(first)]
		allowed = known && (p.with || second == 0)
	case sqlite3.SQLITE_FUNCTION:
		allowed = !functions[name(second)]
	case sqlite3.SQLITE_READ:
		allowed = name(first) != "sqlite_dbpage" // the file's pages as they lie
	case sqlite3.SQLITE_CREATE_VTABLE:
		allowed = modules[name(second)]
	}
	if !allowed {
		return sqlite3.SQLITE_DENY
	}
	return sqlite3.SQLITE_OK
}
