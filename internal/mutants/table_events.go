package main

var eventsMutants = table{breaks: "./events", rows: []mutant{
	{"late attachment is live", "Sequencer.Check", "\t\tv.Missed = a.Seq > 0\n\tcase a.Seq < s.next", "\t\tv.Missed = false\n\tcase a.Seq < s.next", "TestSequencer"},
	{"behind a stored cursor all is trusted", "Sequencer.advanceBack", "s.other || !s.timed ||", "s.other ||", "TestSequencerResumeBehindARestart"},
	{"an engine that catches up is the old one", "Sequencer.Check", "\tcase s.other:", "\tcase false:", "TestSequencer"},

	{"hashes fold to their first bytes", "cursor.hash", "binary.BigEndian.Uint64(b[n-8:])", "binary.BigEndian.Uint64(b[:8])", "TestGolden"},

	{"duplicates applied", "Sequencer.checkBack", "if s.seen(a.Digest) {\n\t\treturn\n\t}\n\tnewer", "newer", "TestSequencer"},
	{"a new clock ignored", "Sequencer.checkBack", "newer := a.Decoded && s.timed && a.Time > s.time", "newer := false", "TestSequencer"},
	{"16 in a row ignored", "Sequencer.checkBack", "s.back+1 >= backLimit", "false", "TestSequencerRestartWithoutClock"},
	{"what comes again contradicts", "Sequencer.checkBack", "s.contradicts(a) && s.back+1", "s.back+1", "TestSequencerContradictions"},
	{"what does not contradict counts", "Sequencer.advanceBack", "\tif s.contradicts(a) {\n\t\ts.back++", "\tif true {\n\t\ts.back++", "TestSequencerContradictions"},
	{"the time of a later number says nothing", "Sequencer.contradicts", "return a.Decoded && later >= 0 && a.Time > s.marks[later].time", "return false && later >= 0", "TestSequencerRestartAfterALongLife"},
	{"a replay proves nothing", "Sequencer.checkBack", "a.Replayed && s.differs(a) ||", "", "TestSequencerReplayed"},
	{"behind a stored cursor clocks say nothing", "Sequencer.old", "|| s.blind && s.timed && a.Time < s.time", "", "TestSequencerResumeWithATime"},
	{"an earlier life is news", "Sequencer.old", "return a.Seq < s.oldNext && a.Time <= s.oldTime ||", "return", "TestSequencerRedeliveryOfALife"},
	{"marks without bound", "Sequencer.remember", "for len(s.marks) >= maxMarks &&", "if len(s.marks) == maxMarks &&", "TestSequencerIsBounded"},
	{"one odd repeat is for ever", "Sequencer.advanceBack", "s.back, s.other = 0, false", "s.back = 0", "TestSequencerOddRepeat"},

	{"the first connection is trusted", "Subscriber.catchUp", "if err == nil && first && r.due > 0 {", "if false && first {", "TestReplayFirstContact"},

	{"a pod may fill the pool", "Pool.fits", "return q.stats.Messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&", "return 1 <= p.cfg.MaxMessages-p.stats.Messages &&", "TestPoolShares"},
	{"a pod may have all bytes", "Pool.fits", "q.stats.Bytes+int64(n) <= p.cfg.MaxBytes-p.stats.Bytes", "int64(n) <= p.cfg.MaxBytes-p.stats.Bytes", "TestPoolShares"},
	{"a pool without bound", "Pool.fits", "return q.stats.Messages+1 <= p.cfg.MaxMessages-p.stats.Messages &&", "return true &&", "TestPoolAgainstModel"},
	{"the newest is dropped", "Pool.room", "\t\tif q.first[spare] == nil {\n\t\t\treturn p.replace(s, n)\n\t\t}\n\t\tp.drop(q.first[spare])", "\t\tif q.first[waiting] == nil {\n\t\t\treturn false\n\t\t}\n\t\tp.drop(q.first[waiting])", "TestPoolKeepsTheNewest"},
	{"a queued restart is dropped", "Pool.push", "old != nil && !old.restart {", "old != nil {", "TestPoolRestartIsNotDropped"},
	{"a hole before first contact shows", "Pool.hides", "return !heard || d.drop.From < next ||", "return !heard && false || d.drop.From < next ||", "TestPoolDropBeforeFirstContact"},
	{"a hidden drop is not told", "Pool.deliver", "d.restart = d.restart || p.hides(d)", "", "TestPoolDropsAreTold"},
	{"a restart that the sink did not take is forgotten", "Pool.serveOne", "s.owed = d.restart", "s.owed = false", "TestPoolOwesRestarts"},
	{"pods have no turns", "Pool.run", "(i < poolTurn || p.line.first == nil)", "true", "TestPoolTurns"},
	{"places without bound", "Pool.push", "if p.workers < p.cfg.Concurrency {", "if true {", "TestPoolDefaults"},
	{"payloads are not copied", "Pool.Offer", "copy(e.buf, m.Payload)", "e.buf = m.Payload[:n:n]", "TestPoolAgainstModel"},
	{"offers overtake", "Pool.reserve", "if len(q.waiters) == 0 && p.room(s, n) {", "if p.room(s, n) {", "TestPoolCancel"},
	{"Close drops in silence", "Pool.Close", "\t\tp.cfg.OnDrop(d)\n", "\t\t_ = d\n", "TestPoolCloseInTime"},
	{"poison is any error", "Pool.serveOne", "case errors.Is(err, ErrMalformed):", "case false:", "TestPoolPoison"},
	{"Hold in a pool", "Pool.Offer", "case m.Hold:", "case false:", "TestPoolRefuses"},

	{"components taken for the whole", "decoder.component", "if name != \"\" && name != \"full\" {", "if name == \"mamba\" {", "TestSGLang"},
	{"a list of components is no matter", "decoder.components", "\td.aside = true\n\treturn nil", "\treturn nil", "TestSGLang"},

	{"SGLang's salt in a map ignored", "decoder.value", "e.Salt, err = d.text()", "_, err = d.text()", "TestSGLang"},
	{"events set aside are kept", "decoder.end", "\t\td.b.dropEvent()\n", "", "TestSGLang"},
	{"endings repeat other entries", "decoder.repeats", "e.HasExtra, d.entries = like.HasExtra, last.entries", "e.HasExtra, d.entries = like.HasExtra, len(e.Hashes)", "TestEndingsChecked"},
	{"endings of other fields", "decoder.pairs", "if *seen == l.varying && d.repeats", "if *seen&l.varying == l.varying && d.repeats", "TestEndings"},
	{"endings with counts", "decoder.remember", " || d.e.Remaining != nil {", " {", "TestEndings"},
	{"endings of other kinds", "decoder.repeats", "last.start == 0 || last.fields != here.fields ||", "last.start == 0 ||", "TestEndings"},
	{"events grow by a claim", "decoder.newEvent", "min(d.rest, 1+d.left()/minEventBytes)", "d.rest", "TestBoundedMemory"},
	{"extra keys without bound", "decoder.extraKeysOf", "min(maxExtra, len(d.data)/minExtraBytes)", "maxExtra", "TestBoundedMemory"},
	{"JSON is a number", "looksLikeJSON", "text[0] == '{' || text[0] == '['", "false", "TestRefused"},
	{"JSON behind spaces is a number", "looksLikeJSON", "bytes.TrimLeft(payload, \" \\t\\r\\n\")", "bytes.TrimLeft(payload, \"\")", "TestRefused"},
	{"keys repeat", "decoder.batchMap", "if f != unknown && seen[f] {", "if false {", "TestRefused"},
	{"hashes may be nil", "decoder.value", "if f != fieldHashes && d.isNil()", "if d.isNil()", "TestRefused"},

	{"one reason for all", "ReasonOf", "return f.reason", "return ReasonType", "TestReasonOf"},

	{"a held message of the engine before is applied", "Subscriber.repair", "if known && answered && !st.doubted {", "if known && answered && !st.doubted && false {", "TestHeldOfAnOtherLife"},
	{"an engine that does not keep all is left for ever", "Subscriber.repair", "if known && answered && !st.doubted {", "if known && answered {", "TestEngineThatDoesNotKeep"},
	{"an answer may begin before what was asked for", "replay.ask", "case seq < start: // not what was asked for", "case false: // not what was asked for", "TestAnswerBeginsTooEarly"},
	{"the confirmation is applied", "replay.confirm", "Payload: payload, Hold: true})", "Payload: payload})", "TestRestartBetweenRequests"},
	{"what is behind a held message is waited for", "replay.ask", "\t\t\tif until != nil && r.due > *until {\n\t\t\t\treturn false, nil\n\t\t\t}\n", "", "TestRepairEnds"},

	{"an idle connection asks again and again", "idleness.onIdle", "if !i.asked && i.err == nil {", "if i.err == nil {", "TestIdle"},
	{"an idle connection asks nothing", "idleness.onIdle", "i.asked, i.err = true, i.ask()", "i.asked = true", "TestIdle"},
	{"a lost connection is not told", "Subscriber.session", "\ts.interrupted(st)\n", "", "TestInterrupted"},
	{"a connection to the engine before has a say", "Subscriber.takeFrom", "\tif c.id < o.floor {\n\t\treturn errOtherLife\n\t}\n", "", "TestBoundOldConnection"},

	{"an older connection may have its say", "streamOwner.claim", "if id < o.conn {", "if false {", "TestSubscriberNewestConnectionWins"},
	{"a doubt ends with its connection", "streamOwners.leave", "if o.doubted {", "if false {", "TestBoundEngineThatDoesNotKeep"},
	{"doubts without bound", "streamOwners.remember", "if len(so.young) == rememberedDoubts {", "if false {", "TestSubscriberRemembersDoubts"},

	{"topics without bound", "Subscriber.newStream", "len(c.streams) == s.cfg.MaxTopics || ", "", "TestSubscriberBoundsTopics"},

	{"an engine that keeps nothing has started anew", "replay.confirm", "if seq != r.due-1 && r.st.spoke == r.due {", "if false {", "TestReplayNothingKept"},
	{"a replay without end", "replay.ask", "if time.Now().After(r.end) {", "if false {", "TestReplayWithoutEnd"},

	{"what a pool owes is swept", "podQueue.sweep", "if s.offers == 0 && !s.owed && s.lost.Messages == 0 {", "if s.offers == 0 {", "TestPoolRemembersWhatItOwes"},

	{"holes in an answer are passed over", "replay.ask", "case seq > r.due && !first:", "case false && first:", "TestReplayAnswers"},
	{"an engine that forgot the last message goes on", "replay.confirm", "if seq != r.due-1 {", "if false {", "TestReplayFillsGaps"},
	{"another's last message goes on", "replay.confirm", "if err == nil && !receipt.Duplicate {", "if err == nil && false && !receipt.Duplicate {", "TestReplayFillsGaps"},
	{"a gap is filled by any engine", "replay.ask", "known := start == 0", "known := start == 0 || r.done.Attempts > 0", "TestReplayConfirmsLater"},
	{"an early end is the end", "replay.run", "case until != nil && r.due > *until, until == nil && ended:", "case until != nil && r.due > *until, ended:", "TestReplayAnswers"},
	{"what the sink did not take is gone", "replay.deliver", "\tif errors.Is(err, ErrMalformed) {\n", "\tif err != nil {\n", "TestReplaySinkErrors"},
}}
