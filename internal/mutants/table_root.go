package main

var rootMutants = table{breaks: ".", rows: []mutant{
	{"no length-1 cap", "cachedTokens", "(promptTokens - 1) / size * size", "promptTokens / size * size", "TestCachedTokens"},
	{"window group stands for the full one", "scorer.chooseRows", "case row.Group.Kind == index.GroupFull || row.FullGroups == 0:", "default:", "TestHybridIsAnUpperBound"},
	{"one full group is enough", "scorer.chooseRows", "case row.FullGroups > 1:", "case false:", "TestSeveralFullGroups"},
	{"a group that holds nothing does not count", "scorer.scoreHybrids", "if l.groups == sc.matches.Rows[l.row-1].FullGroups {", "if l.groups > 0 {", "TestSeveralFullGroups"},
	{"the group that holds the most counts", "scorer.scoreHybrids", "sc.better(l.bestRow, b)", "sc.better(b, l.bestRow)", "TestSeveralFullGroups"},
	{"ranks in any order", "scorer.improve", "b.row == 0 || sc.better(t, *b)", "true", "TestRanks"},
	{"top ignored", "scorer.rank", "top > 0 && top < n {", "n < 0 {", "TestTop"},
	{"the last of the best is worse than the rest", "scorer.chooseBest", "if rank <= last {", "if rank <= last || true {", "TestTop"},
	{"top in reverse", "scorer.chooseBest", "rank > ranks[order[at-1]]", "rank < ranks[order[at-1]]", "TestTop"},
	{"a tie by name", "scorer.spread", "uint64(^place(prompt, hashes[at]))<<32", "uint64(^place(prompt, hashes[at]))>>32", "TestTiesSpread"},
	{"a tie of the best by name", "scorer.rankBest", "r | uint64(place(prompt, hashes[i]))", "r | uint64(place(prompt, hashes[i]))>>32", "TestTiesAgainstModel"},
	{"ties among the best unnoticed", "scorer.rankBest", "tied = tied || ranks[sc.order[i]] == ranks[sc.order[i-1]]", "_ = i", "TestTiesAgainstModel"},
	{"ties with the rest unnoticed", "scorer.rankBest", "tied := rest == least", "tied := rest > least", "TestTiesAgainstModel"},
	{"who is not chosen is nobody's tie", "scorer.chooseBest", "rest = max(rest, rank)", "rest = max(rest, 0)", "TestTiesAgainstModel"},
	{"who is chosen no more is nobody's tie", "scorer.chooseBest", "rest = last", "_ = last", "TestTiesAgainstModel"},
	{"places near enough", "scorer.spread", "for ; i > 0 && sorted[i-1] > r; i-- {", "for ; i > 0 && false; i-- {", "TestTiesAgainstModel"},
	{"only the first tie is broken", "scorer.rank", "order = order[n:]", "order = nil", "TestTiesAgainstModel"},
	{"places of one prompt are those of another", "place", "bits.Mul64(prompt^pod, ", "bits.Mul64(prompt*0^pod, ", "TestTiesSpread"},
	{"places in a pattern", "place", "(high ^ low) >> 32", "(high^low)*0>>32 + (prompt^pod)>>32", "TestTiesSpread"},
	{"a place is of a prompt's beginning", "hasher.prompt", "tokens[len(tokens)-tieTokens:]", "tokens[tieTokens:][:tieTokens]", "TestTiesOfOtherPrompts"},
	{"a place for all salts", "hasher.prompt", "xxh3.HashString(s.salt)", "0", "TestTiesOfOtherPrompts"},
	{"a place for all adapters", "hasher.prompt", "xxh3.HashString(s.adapter)", "0", "TestTiesOfOtherPrompts"},
	{"a place for all media", "hasher.prompt", "xxh3.HashString(media[i].Hash)", "uint64(i)", "TestTiesOfOtherPrompts"},
	{"a place for all lengths", "hasher.prompt", "uint64(len(tokens)))", "0)", "TestTiesOfOtherPrompts"},
	{"clients aim at a pod", "hasher.pod", "xxh3.HashStringSeed(name, h.rootSeed)", "xxh3.HashString(name)", "TestTiesAreSeeded"},
	{"clients know a prompt's place", "hasher.prompt", "xxh3.HashSeed(b, h.localSeed)", "xxh3.Hash(b)", "TestTiesAreSeeded"},

	{"an unknown model untold", "Indexer.resolve", "set.unknown = x.unknownModel(c.model)", "_ = x.unknownModel(c.model)", "TestMistakes"},
	{"an unknown model uncounted", "outcomes", "{ErrUnknownModel, OutcomeUnknownModel},", "{ErrUnknownModel, OutcomeScored},", "TestMistakes"},
	{"an unknown adapter untold", "scorer.unknown", "err == nil && adapter != \"\" {", "err == nil && adapter == \"\" {", "TestMistakes"},
	{"a model is unknown where nobody is known", "Indexer.resolve", "!set.known && len(x.models) > 0 {", "!set.known {", "TestUnknownNames"},
	{"silent pods tell of no adapter", "Indexer.unknownAdapter", "State(pm.state.Load()) != StateSilent {", "State(pm.state.Load()) != 99 {", "TestUnknownNames"},
	{"what is held is unknown", "scorer.unknown", "return b.matched > 0", "return b.matched < 0", "TestAnOldIndexIsKnown"},
	{"what the score before held is known", "scorer.release", "sc.times, sc.best = times{}, sc.best[:0]", "sc.times = times{}", "TestAnOldIndexIsKnown"},
	{"text for an unknown name says nothing of it", "candidateSet.explain", "case set.unknown != nil:", "case false:", "TestMistakes"},
	{"no text says that a name may be an adapter's", "candidateSet.explain", "case !set.known:", "case false:", "TestUnknownNames"},
	{"a file that is not there is a failure", "orNone", "errors.Is(err, fs.ErrNotExist) {", "errors.Is(err, fs.ErrExist) {", "TestMistakes"},
	{"what was unknown stays so", "Indexer.ScoreRequest", "*dst = Answer{Pods: dst.Pods[:0]}", "*dst = Answer{Pods: dst.Pods[:0], Unknown: dst.Unknown}", "TestMistakes"},
	{"scores run into their tokens", "tally.count", "sum&halfFull == 0 && ", "", "TestScoresAreCounted"},
	{"long prompts run into the number of scores", "tally.count", "o == OutcomeScored && prompt < 1<<23 {", "o == OutcomeScored {", "TestScoresAreCounted"},
	{"few scores are forgotten", "tally.settle", "t.add(OutcomeScored, few>>48,", "t.add(OutcomeScored, 0*few,", "TestScoresAreCounted"},
	{"times of the score before", "scorer.release", "sc.times, sc.best = times{}, sc.best[:0]", "sc.best = sc.best[:0]", "TestScoredHook"},
	{"rendering takes no time", "scorer.renderChat", "model, err = sc.x.chats(ctx, base)\n\t\tsc.spend(&sc.times.render, began)", "model, err = sc.x.chats(ctx, base)\n\t\t_ = began", "TestScoredHook"},
	{"tokenizing takes no time", "scorer.tokenize", "sc.spend(&sc.times.tokenize, began)", "_ = began", "TestScoredHook"},

	{"one pod twice", "Indexer.Candidates", "c.pods = slices.Compact(c.pods)", "", "TestScorePods"},
	{"candidates in no order", "Indexer.Candidates", "slices.Sort(c.pods)\n", "", "TestScorePods"},
	{"candidates never renewed", "Candidates.now", "set != nil && set.heard == c.x.heard.Load()", "set != nil", "TestCandidates"},
	{"an adapter of two models is of one", "Indexer.resolve", "if set.adapter != \"\" {", "if false {", "TestScopes"},

	{"a new pod is not heard", "Indexer.podModel", "md.pods[p.name] = pm\n\tx.heard.Add(1)", "md.pods[p.name] = pm", "TestCandidates"},
	{"a pod that leaves is not heard", "Indexer.RemovePod", "delete(x.pods, name)\n\tx.heard.Add(1)", "delete(x.pods, name)", "TestCandidates"},
	{"a new adapter is not heard", "Indexer.learnAdapter", "\tx.heard.Add(1)\n", "", "TestCandidates"},
	{"the best rank speaks for the pod", "podModel.settle", "min(state, r.view()), true", "max(state, r.view()), true", "TestLossByStream"},

	{"the first rank counts", "scorer.improve", "b.row == 0 || sc.better(t, *b)", "b.row == 0", "TestRanks"},
	{"the higher of equal ranks", "scorer.better", "sc.rankOf(b)-sc.rankOf(a)", "sc.rankOf(a)-sc.rankOf(b)", "TestRanks"},

	{"an adapter of other pods", "Indexer.resolve", "c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] })", "false", "TestScopes"},

	{"model ignored", "ingest.source", "Model: in.model", "Model: \"m\"", "TestScopes"},
	{"rank ignored", "ingest.source", ", Rank: r.n", "", "TestScopes"},

	{"salt ignored", "hasher.root", "{s.model, s.adapter, s.salt}", "{s.model, s.adapter}", "TestScopes"},
	{"seed ignored", "hasher.locals", "xxh3.HashSeed(full, h.localSeed)", "xxh3.Hash(full)", "TestScopesSeparate"},

	{"root of its own for each block", "converter.stored", "HasParent: e.HasParent,", "HasParent: false,", "TestScopes"},
	{"blocks of odd units", "variantOf", "return v, size/v.Unit <= index.MaxBlockUnits", "return v, true", "TestOddBlockSizes"},
	{"media ignored", "converter.readExtras", "c.extras = append(c.extras, mediaAt(", "_ = append(c.extras, mediaAt(", "TestMedia"},
	{"embeddings ignored", "converter.readExtras", "extra{first, embeds, id, 0}", "extra{-1, embeds, id, 0}", "TestMedia"},
	{"copies of others counted", "converter.convert", "if foreign(e) {", "if false {", "TestForeignCopies"},
	{"an unknown medium is the gpu", "tierOf", "\treturn TierOther\n", "\treturn TierGPU\n", "TestTiers"},

	{"gap forgiven", "delivery.take", "lost := v.Gap.Lost || v.Restarted", "lost := v.Restarted", "TestMessages"},
	{"restart forgiven", "delivery.take", "lost := v.Gap.Lost || v.Restarted", "lost := v.Gap.Lost", "TestMessages"},
	{"malformed forgiven", "delivery.skip", "if err := d.loseOthers(); err != nil {", "if err := error(nil); err != nil {", "TestMessages"},
	{"other ranks of a stream keep their view", "delivery.loseOthers", "if r == d.rank {", "if r != nil {", "TestLossByStream"},
	{"reports counted in a partial view", "converter.stored", "Partial:   c.partial,", "", "TestPartialViewCountsNoReport"},
	{"a stored cursor ignored", "delivery.join", "if cur.Next == 0 {", "if true {", "TestMessagesAfterARestartOfTheHost"},
	{"a moved rank keeps its blocks", "delivery.join", "d.moved = r.state != StateUnknown", "d.moved = false", "TestARankMovesToAnotherStream"},

	{"adapter not in the units", "hasher.of", "if adapter != \"\" {", "if false {", "TestASaltNamedLikeAnAdapter"},

	{"a clear leaves the view partial", "rank.heard", "case clears(b):", "case false:", "TestMessages"},
	{"the time of a cursor is not stored", "delivery.cursor", "Next: v.Next, Time: time}", "Next: v.Next}", "TestMessagesAfterARestartOfTheHost"},
	{"a first message is never held", "delivery.deliver", "d.m.Hold && (v.Gap.Lost || v.Missed || v.Restarted) {", "d.m.Hold && v.Gap.Lost {", "TestStreamRestarted"},

	{"a pod that waits for a replay is live", "stream.limit", "\tcase st.held:\n\t\treturn min(state, StateReplaying)", "\tcase false:\n\t\treturn min(state, StateReplaying)", "TestReplayedGap"},
	{"a lost connection is nothing", "stream.limit", "\tcase st.interrupted:", "\tcase false:", "TestStreamInterrupted"},

	{"any message ends the wait", "stream.release", "next > st.heldSeq || seq >= st.heldSeq {", "next > 0 {", "TestAHoleStaysOpen"},
	{"a message that a replay brought is waited for", "stream.release", "next > st.heldSeq || seq >= st.heldSeq {", "seq > st.heldSeq && next > 0 {", "TestReplayBringsTheHeldMessage"},
	{"a held message outlives its connection", "Indexer.StreamNote", "st.interrupted, st.held = true, false", "st.interrupted = true", "TestStreamInterrupted"},
	{"what others left is claimed beside", "delivery.take", "r.stream == nil && !d.x.ownsIndex {", "r.stream == nil && false {", "TestStreamRestartedOutlivesTheHost"},
	{"a rank that comes back is deaf", "delivery.join", "\tst.seq.Resume(cur.Epoch, cur.Next, cur.Time)\n", "\tif d.moved {\n\t\treturn nil\n\t}\n\tst.seq.Resume(cur.Epoch, cur.Next, cur.Time)\n", "TestARankComesBack"},
	{"partial for ever", "delivery.take", "r.state == StateUnknown && st.partial ||", "st.partial ||", "TestAClearEndsThePartialView"},
	{"slow calls find a removed pod", "Indexer.lockKnown", "pm != nil && !p.removed {", "pm != nil {", "TestThePodOfASlowCall"},
	{"invented streams shut out", "podModel.stream", "if len(pm.streams) >= MaxStreams && !pm.dropStream() {", "if len(pm.streams) >= MaxStreams {", "TestWhatAPodMayInvent"},

	{"models without bound", "Indexer.podModel", "if len(p.models) >= MaxModels {", "if false {", "TestWhatAPodMayInvent"},

	{"restarted engines are kept", "delivery.keeps", "return d.x.keep && !d.verdict.Restarted", "return d.x.keep", "TestLossKeep"},
	{"all losses forget", "delivery.keeps", "return d.x.keep && !d.verdict.Restarted", "return false", "TestLossKeep"},

	{"reports counted in an uncertain view", "rank.lossy", "return r.state == StatePartial || r.state == StateUncertain", "return r.state == StatePartial", "TestLossKeep"},

	{"a stream that began anew goes on", "Indexer.StreamRestarted", "\tst.seq.Restart()\n", "", "TestStreamRestarted"},

	{"media form not in the root", "hasher.root", "b = append(b, byte(v.Media))", "_ = v.Media", "TestVariantKeys"},
	{"block size not in the root", "hasher.root", "b = binary.AppendUvarint(b, uint64(v.Block))", "", "TestVariantKeys"},
	{"pairs not in the root", "hasher.root", "b = strconv.AppendBool(b, v.Pairs)", "strconv.AppendBool(b, v.Pairs)", "TestVariantKeys"},
	{"pads not shifted", "pad", "of[j] = padShift + hash", "of[j] = hash", "TestScopesAgainstModel"},
	{"pads of the first token", "pad", "for j := range min(m.Length, len(of)) {", "for j := range min(m.Length, len(of), 1) {", "TestScopesAgainstModel"},
	{"a negative hash like its opposite", "lowBits", "\tif negative {", "\tif negative && n == 0 {", "TestScopesAgainstModel"},
	{"any hash is an integer", "lowBits", "return 0, false", "continue", "TestMediaHashes"},
	{"an item is in its first block only", "bareMedia", "\t\t\tif end > to {\n\t\t\t\tbreak", "\t\t\tif end > to && end < to {\n\t\t\t\tbreak", "TestScopesAgainstModel"},

	{"salt of bare media in the root too", "scorer.keysIn", "\tif v.Media == MediaBare {", "\tif false {", "TestScopesAgainstModel"},

	{"salt not among bare media", "bareMedia", "if from == 0 && salt != \"\" {", "if false {", "TestScopesAgainstModel"},

	{"bare media are salts", "converter.readExtras", "if v.Media != MediaBare && k.Block == 0", "if k.Block == 0", "TestScopesAgainstModel"},
	{"SGLang's salt ignored", "converter.readExtras", "\tsalt = e.Salt\n", "", "TestASaltedChainKeepsItsRoot"},
	{"pairs are tokens", "variantOf", "Media: media, Pairs: e.Pairs}", "Media: media}", "TestScopesAgainstModel"},

	{"pairs as long as tokens", "scorer.bestOf", "\tif row.Pairs {\n\t\tlength--", "\tif false {\n\t\tlength--", "TestScopesAgainstModel"},
	{"all rows of pairs", "scorer.bestOf", "\tif row.Pairs {\n\t\tlength--", "\tif true {\n\t\tlength--", "TestScopesAgainstModel"},
	{"locals of another unit", "scorer.cut", "plain == sc.plain {", "sc.plain != (index.Variant{}) {", "TestVariantKeys"},
	{"locals with a salt are plain", "scorer.cut", "if len(sc.media) > 0 || len(sc.extras) > 0 {", "if len(sc.media) > 0 {", "TestVariantKeys"},
	{"an error of one prompt for all", "scorer.keysIn", "return nil, err", "sc.query.Keys = func(index.Variant) ([]index.Key, error) { return nil, err }\n\t\treturn nil, err", "TestMediaHashes"},

	{"an SGLang is guarded", "Profile.complete", "\tcase p.Media == MediaPad:", "\tcase false:", "TestSGLangCounts"},

	{"any bare block size", "variantOf", "return v, !e.Pairs && size <= maxBareBlock && size&(size-1) == 0", "return v, !e.Pairs", "TestVariantsAreFew"},
	{"bare pairs", "variantOf", "return v, !e.Pairs && size", "return v, size", "TestVariantsAreFew"},
	{"media of another form unnoticed", "converter.readExtras", "unscored = unscored || v.Media != MediaOffsets", "", "TestMediaOfAnotherForm"},
	{"bare media of another form unnoticed", "converter.readExtras", "unscored = unscored || v.Media != MediaBare", "", "TestMediaOfAnotherForm"},
	{"tiers by case", "tierOf", "switch strings.ToUpper(medium) {", "switch medium {", "TestTierNames"},

	{"model per pod exact", "Indexer.podModel", "profile:  profile.complete(),", "profile:  Profile{}.complete(),", "TestScopesAgainstModel"},

	{"items that are over go on", "bareMedia", "\t\t\tif end > from {", "\t\t\tif end > 0 {", "TestNestedItems"},
	{"media without a length", "bareMedia", "min(max(m.Length, 1), tokens-m.Offset)", "min(m.Length, tokens-m.Offset)", "TestNestedItems"},

	{"locals of the prompt before", "scorer.match", "sc.keys, sc.plain = sc.keys[:0], index.Variant{}", "sc.keys = sc.keys[:0]", "TestCachedTokens"},

	{"an adapter's number is media", "converter.readExtras", "if strconv.FormatInt(k.Int, 10) != e.Adapter {", "if strconv.FormatInt(k.Int, 10) != e.Adapter+\"x\" {", "TestScopesAgainstModel"},
	{"an adapter's name is media", "converter.readExtras", "if opens && k.Text == e.Adapter && e.Adapter != \"\" {", "if opens && k.Text == e.Adapter && e.Adapter == \"\" {", "TestScopesAgainstModel"},

	{"a body's model goes before the caller's", "Request.read", "if r.Model == \"\" && r.Candidates == nil {", "if r.Candidates == nil {", "TestBodiesOfOnePrompt"},
	{"a body's salt goes before the caller's", "Request.read", "if r.Salt == \"\" {", "if true {", "TestBodyScopes"},
	{"a body's salt is not heard", "Request.read", "filled.Salt = body.Salt", "filled.Salt = \"\"", "TestBodyScopes"},
	{"a chat gets a second BOS", "scorer.renderChat", "text.Text, !asked.AddSpecial)", "text.Text, asked.AddSpecial)", "TestBodiesOfOnePrompt"},
	{"a completion gets no BOS", "Request.read", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, true", "TestBodiesOfOnePrompt"},
	{"what cannot be scored is a bad request", "ofBody", "if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "if true {", "TestBodyErrors"},
	{"a chat's media stay where they are", "scorer.renderChat", "sc.prompt = sc.expanded\n", "", "TestBodyMedia"},

	{"rendered text gets a BOS", "scorer.tokenize", "text, !rendered)", "text, true)", "TestBodiesOfOnePrompt"},
	{"media of a chat without a length", "Request.validate", "case asked != nil && m.Length == 0:", "case false:", "TestBodyMedia"},

	{"the body's model goes before candidates", "Request.read", "if r.Model == \"\" && r.Candidates == nil {", "if r.Model == \"\" {", "TestBodiesOfOnePrompt"},
	{"a completion is never rendered", "Request.read", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, false", "TestBodiesOfOnePrompt"},
	{"a body beside tokens", "Request.read", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || r.Rendered {", "TestBodyErrors"},
	{"a body that is rendered", "Request.read", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || len(r.Tokens) > 0 {", "TestBodyErrors"},
	{"what a template refuses is the host's fault", "ofBody", "errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "errors.Is(err, chat.ErrMalformed) {", "TestBodyErrors"},

	{"a batch cures all doubt", "State.after", "case s != StateUnknown:", "case s != StateUnknown && s != StateUncertain:", "TestLossKeep"},
	{"what was forgotten is all that was there", "State.after", "case e == forgotten:\n\t\treturn StatePartial", "case e == forgotten:\n\t\treturn StateLive", "TestMessages"},
	{"who was heard late is live", "State.after", "case e == heardLate:", "case false:", "TestStreamRestarted"},
	{"another engine's view goes on", "State.after", "case e == replaced:", "case false:", "TestMessages"},
	{"reports counted after a mark", "ingest.unnumbered", "in.convert.partial = r.lossy()", "in.convert.partial = false", "TestLossKeep"},
	{"a rank has two streams", "podModel.bind", "old.ranks = slices.DeleteFunc(old.ranks, func(o *rank) bool { return o == r })", "", "TestALossIsOfTheRanksOfItsStream"},
	{"a rank that goes on leaves no stream", "delivery.join", "d.pm.bind(r, st)", "r.stream, st.ranks = st, append(st.ranks, r)", "TestALossIsOfTheRanksOfItsStream"},
	{"what cannot be read makes a pod known", "delivery.deliver", "d.bad != nil && d.x.pod(d.pod) == nil", "false", "TestMalformedFirst"},
	{"what a replay passes over is not counted", "delivery.tally", "s.PassedOver = s.Missing", "s.PassedOver = 0", "TestReplayPassesOver"},
	{"a held gap is counted twice", "delivery.tally", "if !d.stream.held {", "if true {", "TestReplayPassesOver"},
	{"counters go round", "addCounters", "min(n, math.MaxUint64-sum[i])", "n", "TestWhatAPodMayInvent"},
	{"tiers of no number", "TierCounts.Of", "if int(t) < len(c.n) {", "if true {", "TestCountsByKind"},
	{"reasons of no number", "ReasonCounts.Of", "if int(r) < len(c.n) {", "if true {", "TestCountsByKind"},
	{"nobody asks what the index takes", "Indexer.Stats", "s.Index = m.Usage()", "_ = m", "TestRemovePod"},
}}
