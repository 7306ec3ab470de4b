package index

import "testing"

// TestDefaults: zeros mean the defaults in the comments of MemoryConfig.
func TestDefaults(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	budget := int64(4 << 30)
	if ^uint(0)>>63 == 0 {
		budget = 512 << 20
	}
	if c := m.cfg; c.pendingBytes != 4<<20 || c.idleNames != 65536 || c.Bytes != budget {
		t.Errorf("zeros give %d bytes that wait, %d idle names, %d bytes", c.pendingBytes, c.idleNames, c.Bytes)
	}
}
